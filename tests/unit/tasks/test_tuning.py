"""A search without a GPU: trials are answered by a function, everything else is real, Optuna's journal included."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench.result import End, Metrics, TrialResult, summarize
from bench.trial import Trial
from tasks.errors import UsageError
from tasks.tuning import answer, record, search, space
from tasks.tuning.space import Candidate, MemoryLimit, Observation

GIB = 2**30
RECIPES = ("reference", "stock", "fast")


def made(**changes: Any) -> list[Candidate]:
    fields: dict[str, Any] = {
        "model": "models/m",
        "data": "data/d.jsonl",
        "profile": "gpu",
        "recipes": RECIPES,
        "longest": 512,
        "lora": {"lora_rank": 16, "lora_alpha": 32, "lora_targets": space.ALL_LINEAR},
        "steps": (3, 6),
        "seed": 1,
        "samples": 10_000,
    }
    return space.candidates(**(fields | changes))


def predicted() -> list[Candidate]:
    """Candidates with plausible predictions: memory grows with the batch, the fast recipe needs least."""
    base = {"reference": 6.0, "stock": 5.0, "fast": 4.5}
    each = {"reference": 1.0, "stock": 0.5, "fast": 0.4}
    share = {"none": 1.0, "every-4": 0.8, "every-2": 0.6, "all": 0.2, "offload": 0.1}
    speed = {"reference": 1.0, "stock": 2.0, "fast": 2.6}
    layouts = {"pad": 0.4, "bucket": 0.8, "varlen": 1.0}
    found = []
    for one in made():
        c = one.choice
        gib = base[c["recipe"]] + each[c["recipe"]] * c["micro_batch_size"] * share[c["recompute"]]
        batch = c["micro_batch_size"] / (c["micro_batch_size"] + 2)
        again = 0.7 + 0.3 * share[c["recompute"]]
        score = 1000.0 * speed[c["recipe"]] * layouts[c["layout"]] * batch * again
        found.append(dataclasses.replace(one, peak_bytes=round(gib * GIB), score=score))
    return found


# The space -----------------------------------------------------------------------------------------------------------


def test_every_candidate_has_a_name_of_its_own():
    names = [one.key for one in made()]
    assert len(names) == len(set(names)) == 3 * 7 * (2 + 2 + 5)


def test_only_the_fast_recipe_is_asked_for_what_it_alone_can_do():
    assert {one.choice["recompute"] for one in made(recipes=("stock",))} == {"none", "all"}


def test_no_batch_is_larger_than_the_data():
    assert max(one.trial.micro_batch_size for one in made(samples=5)) == 4


@pytest.mark.parametrize(
    ("percent", "profile", "positions", "longest"),
    [(99, "gpu", 32768, 640), (100, "gpu", 32768, 4032), (100, "gpu", 2048, 2048), (99, "tiny", 512, 80)],
)
def test_rows_are_as_long_as_the_samples_that_are_kept_whole(percent, profile, positions, longest):
    assert space.max_seq_len({"99": 584, "100": 4001}, percent, profile, positions) == longest


# Memory --------------------------------------------------------------------------------------------------------------


def fast(batch: int, recompute: str = "none") -> Candidate:
    wanted = {"recipe": "fast", "layout": "pad", "micro_batch_size": batch, "recompute": recompute}
    return next(one for one in predicted() if one.choice == wanted)


def test_without_a_limit_everything_fits():
    assert all(MemoryLimit(None).fits(one) for one in predicted())


def test_a_prediction_close_to_the_limit_does_not_count_as_fitting():
    one = fast(8)
    assert one.peak_bytes is not None
    assert not MemoryLimit(round(one.peak_bytes * 1.02)).fits(one)
    assert MemoryLimit(round(one.peak_bytes * 1.04)).fits(one)


def test_a_measured_peak_corrects_its_recipe_and_no_other():
    one = fast(8)
    assert one.peak_bytes is not None
    limit = MemoryLimit(40 * GIB, [Observation(candidate=one, peak_bytes=round(one.peak_bytes * 1.2))])
    assert limit.corrected(fast(4)) == pytest.approx((fast(4).peak_bytes or 0) * 1.2, rel=1e-6)
    assert set(limit.factors) == {"fast"}


def test_running_out_of_memory_raises_the_prediction_until_it_says_so():
    one = fast(8)
    limit = MemoryLimit(20 * GIB, [Observation(candidate=one, peak_bytes=None)])
    assert not limit.fits(one)
    assert not limit.fits(fast(16))
    assert limit.fits(fast(1, "all"))


# The search ----------------------------------------------------------------------------------------------------------


def true_rate(one: Candidate) -> float:
    """What a trial would measure: near the score, with a taste of its own for a batch of 16."""
    return one.score * (1.15 if one.choice["micro_batch_size"] == 16 else 1.0)


def run_search(folder: Path, limit_bytes: int, waves: int = 6, each: int = 4) -> search.Search:
    found, limit = predicted(), MemoryLimit(limit_bytes)
    finder = search.Search(folder / "journal.log", found, recipes=RECIPES, seed=7)
    for number in range(waves):
        wave = search.promising(found, limit, each) if number == 0 else finder.next(limit, each)
        before = finder.best
        for one in wave:
            finder.tell(one, true_rate(one))
        if number and not search.goes_on(before, finder.best):
            break
    return finder


def test_the_first_wave_has_the_best_of_each_recipe():
    wave = search.promising(predicted(), MemoryLimit(21 * GIB), 4)
    assert [one.choice["recipe"] for one in wave[:3]] == ["fast", "stock", "reference"]
    assert {one.choice["layout"] for one in wave} == {"varlen"}


def test_a_search_finds_nearly_the_best_with_a_fraction_of_the_trials(tmp_path):
    limit = MemoryLimit(21 * GIB)
    fitting = [one for one in predicted() if limit.fits(one)]
    finder = run_search(tmp_path, 21 * GIB)
    assert (finder.best or 0) >= 0.95 * max(true_rate(one) for one in fitting)
    assert len(finder.results) <= 0.25 * len(fitting)


def test_nothing_is_measured_that_does_not_fit(tmp_path):
    limit = MemoryLimit(9 * GIB)
    finder, by_key = run_search(tmp_path, 9 * GIB), {one.key: one for one in predicted()}
    assert finder.results
    assert all(limit.fits(by_key[key]) for key in finder.results)


def test_what_was_told_is_known_to_the_next_process(tmp_path):
    before = run_search(tmp_path, 21 * GIB, waves=2).results
    again = search.Search(tmp_path / "journal.log", predicted(), recipes=RECIPES, seed=7)
    assert again.results == before
    one = next(one for one in predicted() if one.key in before)
    again.tell(one, 1.0)
    assert again.results == before, "a candidate is told once"


def test_a_candidate_that_failed_counts_as_tried_and_is_never_the_best(tmp_path):
    finder = search.Search(tmp_path / "journal.log", predicted(), recipes=RECIPES, seed=7)
    one = predicted()[0]
    finder.tell(one, None)
    assert (finder.results, finder.best) == ({one.key: None}, None)


def test_a_wave_that_hardly_helps_is_the_last():
    assert search.goes_on(None, 100.0)
    assert search.goes_on(100.0, 102.0)
    assert not search.goes_on(100.0, 100.5)


# The answer ----------------------------------------------------------------------------------------------------------


def result(trial: Trial, rate: float, peak: int | None, status: End = End.SUCCEEDED) -> TrialResult:
    metrics = Metrics(
        step_time_sec=summarize([1.0, 1.1]),
        samples_per_sec=1.0,
        tokens_per_sec=rate,
        useful_tokens_per_sec=rate,
        padding_percent=0.0,
        first_loss=2.0,
        last_loss=1.0,
        peak_vram_bytes=peak,
        peak_rss_bytes=1,
        load_time_sec=1.0,
    )
    return TrialResult(trial_id=trial.trial_id, trial=trial, status=status, reason=None, metrics=metrics)


def figures(index: int, rate: float, gib: float) -> answer.Measured:
    trial = predicted()[index].trial
    found = answer.measured(trial, [result(trial, rate, round(gib * GIB))], None, 2.0)
    assert found is not None
    return found


def test_the_front_holds_what_nothing_beats_in_both():
    quick, middle, small, worse = figures(0, 900, 20), figures(1, 600, 12), figures(2, 300, 6), figures(3, 500, 14)
    kept = answer.front([worse, small, quick, middle])
    assert [one.trial.trial_id for one in kept] == [one.trial.trial_id for one in (quick, middle, small)]
    named = answer.titles(kept)
    assert list(named.values()) == ["fastest, cheapest", "", "smallest"]


def test_dollars_follow_from_price_and_rate():
    assert figures(0, 1000, 20).usd_per_million_useful_tokens == pytest.approx(2.0 / 3600 * 1000)


def test_several_processes_give_an_interval_and_one_gives_none():
    trial = predicted()[0].trial
    one = answer.measured(trial, [result(trial, 100.0, None)], None, None)
    three = answer.measured(trial, [result(trial, rate, None) for rate in (100.0, 101.0, 99.0)], None, None)
    assert one is not None
    assert three is not None
    assert one.interval is None
    assert three.interval is not None
    assert three.interval.low <= 100.0 <= three.interval.high


def test_what_failed_has_no_figures():
    trial = predicted()[0].trial
    assert answer.measured(trial, [result(trial, 1.0, None, End.FAILED)], None, None) is None


def test_the_answer_is_plain_json_and_its_best_a_trial_that_can_be_run():
    kept = answer.front([figures(0, 900, 20), figures(2, 300, 6)])
    said = json.loads(json.dumps(answer.document(kept, {"tune_id": "t"})))
    assert [one["best_at"] for one in said["front"]] == ["fastest, cheapest", "smallest"]
    assert Trial.from_json(said["front"][0]["trial"]) == kept[0].trial


# On disk -------------------------------------------------------------------------------------------------------------


def a_record() -> record.TuneRecord:
    return record.TuneRecord(
        tune_id="20261121-000000-tune",
        gpu="NVIDIA A10",
        model_sha256="m",
        data_sha256="d",
        longest=512,
        limit_bytes=20 * GIB,
        settings={"fleet": {"size": 4}},
        candidates=predicted()[:3],
    )


def test_a_search_is_read_as_it_was_written(tmp_path):
    kept = record.create(tmp_path, a_record())
    kept.add_run("run-1", is_final=False)
    kept.add_run("run-2", is_final=True)
    again = record.find(tmp_path, None)
    assert (again.waves, again.final, again.gpu, again.limit_bytes) == (["run-1"], "run-2", "NVIDIA A10", 20 * GIB)
    assert [one.trial for one in again.candidates] == [one.trial for one in kept.candidates]
    assert [one.peak_bytes for one in again.candidates] == [one.peak_bytes for one in kept.candidates]


def test_two_searches_of_one_second_have_folders_of_their_own(tmp_path):
    first, second = record.create(tmp_path, a_record()), record.create(tmp_path, a_record())
    assert first.tune_id != second.tune_id
    assert record.find(tmp_path, None).tune_id == second.tune_id


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "cannot be used"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 9'), "expected 1, found 9"),
        (lambda text: text.replace('"limit_bytes"', '"limit"'), "cannot be used: 'limit_bytes'"),
    ],
)
def test_a_damaged_search_is_refused_with_what_to_type(tmp_path, damage, says):
    kept = record.create(tmp_path, a_record())
    path = (kept.folder or tmp_path) / record.RECORD_FILE
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=says):
        record.find(tmp_path, None)


def test_a_search_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(UsageError, match="`inv tune` to begin one"):
        record.find(tmp_path, None)
    kept = record.create(tmp_path, a_record())
    with pytest.raises(UsageError, match=kept.tune_id):
        record.find(tmp_path, "another")
