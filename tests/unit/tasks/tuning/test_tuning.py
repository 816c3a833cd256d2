"""A search without a GPU: trials are answered by a function, everything else is real, Optuna's journal included."""

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.records import ALL_LINEAR, Trial
from bench.records.result import Steps, TrialResult, TrialStatus
from bench.records.run import PlannedTrial
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.tuning import output, pareto, search, search_state, space, surrogate
from tasks.tuning.space import Candidate, MemoryLimit, TrialObservation
from tests.support.reports import synthetic

GIB = 2**30
RECIPES = ("reference", "stock", "fast")


def made(**changes: Any) -> list[Candidate]:
    fields: dict[str, Any] = {
        "model": "models/m",
        "data": "data/d.jsonl",
        "profile": "gpu",
        "recipes": RECIPES,
        "longest": 512,
        "lora": {"lora_rank": 16, "lora_alpha": 32, "lora_targets": ALL_LINEAR},
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
        layer = round(0.4 * GIB) if c["recipe"] == "fast" else 0
        found.append(dataclasses.replace(one, peak_bytes=round(gib * GIB), layer_bytes=layer, score=score))
    return found


BY_KEY = {one.key: one for one in predicted()}
STOCK = next(one for one in BY_KEY.values() if one.choice["recipe"] == "stock")


# The space -----------------------------------------------------------------------------------------------------------


def test_every_candidate_has_a_name_of_its_own():
    names = [one.key for one in made()]
    assert len(names) == len(set(names)) == 3 * 7 * (2 + 2 + 5)


def test_only_the_fast_recipe_is_asked_for_what_it_alone_can_do():
    assert {one.choice["recompute"] for one in made(recipes=("stock",))} == {"none", "all"}


def test_products_in_8_bits_are_searched_where_a_setting_names_them():
    found = made(recipes=("fast", "fast-eight-backward", "fast-eight"))
    assert Counter(one.trial.products for one in found) == {"bf16": 105, "eight_backward": 105, "eight": 105}
    assert {one.trial.recipe for one in found} == {"fast"}
    assert len({one.key for one in found}) == len(found)
    assert {one.trial.products for one in made()} == {"bf16"}, "and nowhere else"


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


EIGHT, LIMIT = fast(8), MemoryLimit(21 * GIB)
PEAK = EIGHT.peak_bytes or 0


def test_a_prediction_close_to_the_limit_does_not_count_as_fitting():
    assert not MemoryLimit(round(PEAK * 1.02)).fits(EIGHT)
    assert MemoryLimit(round(PEAK * 1.04)).fits(EIGHT)


def test_a_measured_peak_corrects_its_recipe_and_no_other():
    limit = MemoryLimit(40 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=round(PEAK * 1.2))])
    assert limit.corrected(fast(4)) == pytest.approx((fast(4).peak_bytes or 0) * 1.2, rel=1e-6)
    assert set(limit.factors) == {"fast"}


def test_running_out_of_memory_raises_the_prediction_until_it_says_so():
    limit = MemoryLimit(20 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=None)])
    assert [limit.fits(one) for one in (EIGHT, fast(16), fast(1, "all"))] == [False, False, True]


def test_as_many_layers_are_held_as_the_corrected_prediction_has_room_for():
    limit = MemoryLimit(21 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=round(PEAK * 1.2))])
    held = space.holding(EIGHT, limit, 32)
    more = dataclasses.replace(held, peak_bytes=(held.peak_bytes or 0) + EIGHT.layer_bytes)
    assert limit.fits(held)
    assert not limit.fits(more)
    assert held.key == f"{EIGHT.key}-held-{held.trial.held_layers}"
    assert held.trial.digest() == dataclasses.replace(EIGHT.trial, held_layers=held.trial.held_layers).digest()
    assert held.peak_bytes == PEAK + held.trial.held_layers * EIGHT.layer_bytes
    assert space.holding(EIGHT, limit, 3).trial.held_layers == 3, "a model has no more layers than it has"


def test_nothing_is_held_without_room_a_limit_or_a_recipe_that_can():
    assert space.holding(EIGHT, MemoryLimit(round(PEAK * 1.04)), 32) is None
    assert space.holding(EIGHT, MemoryLimit(None), 32) is None
    assert space.holding(STOCK, MemoryLimit(80 * GIB), 32) is None


# What is believed ----------------------------------------------------------------------------------------------------


def rate_of(expected: surrogate.Prediction, one: Candidate) -> float:
    return math.exp(expected.mean[list(BY_KEY).index(one.key)])


def test_without_a_measurement_the_prediction_is_believed():
    expected = surrogate.Surrogate(predicted()).given({})
    assert rate_of(expected, EIGHT) == pytest.approx(EIGHT.score)


def test_a_measurement_is_believed_where_it_was_made_and_moves_what_is_alike_most():
    one, alike = fast(4), fast(2)
    known = {EIGHT.key: EIGHT.score, STOCK.key: STOCK.score}
    before = surrogate.Surrogate(predicted()).given({**known, one.key: one.score})
    after = surrogate.Surrogate(predicted()).given({**known, one.key: one.score / 2})
    moved = [rate_of(after, each) / rate_of(before, each) for each in (one, alike, STOCK)]
    assert moved[0] == pytest.approx(0.5, rel=0.1)
    assert moved[1] < 0.8 < 0.95 < moved[2]


def test_a_gpu_of_another_speed_leaves_the_order_as_it_was():
    expected = surrogate.Surrogate(predicted()).given({EIGHT.key: 700.0 * EIGHT.score})
    for other in predicted():
        assert rate_of(expected, other) / other.score == pytest.approx(700.0, rel=0.1)


def test_what_is_measured_is_surer_than_what_is_not_and_a_surprise_makes_everything_less_sure():
    other = fast(4)
    as_expected = surrogate.Surrogate(predicted()).given({EIGHT.key: EIGHT.score, other.key: other.score}).deviation
    surprised = surrogate.Surrogate(predicted()).given({EIGHT.key: EIGHT.score, other.key: other.score / 50}).deviation
    known = dict(zip(BY_KEY, as_expected, strict=True))
    assert known[EIGHT.key] < min(known[key] for key in BY_KEY if key not in (EIGHT.key, other.key))
    assert all(after > before for before, after in zip(as_expected, surprised, strict=True))


def test_the_expected_improvement_is_the_mean_of_what_is_gained():
    chooser = random.Random(3)
    for ahead, deviation in ((0.0, 0.1), (-0.2, 0.3), (0.1, 0.05)):
        drawn = [max(0.0, math.expm1(chooser.gauss(ahead, deviation))) for _ in range(200_000)]
        assert surrogate.improvement(ahead, deviation) == pytest.approx(sum(drawn) / len(drawn), rel=0.03)
    assert surrogate.improvement(-0.1, 0.0) == 0.0
    assert surrogate.improvement(0.1, 0.0) == pytest.approx(math.expm1(0.1))


# The search ----------------------------------------------------------------------------------------------------------

World = Callable[[Candidate], float]


def true_rate(one: Candidate) -> float:
    """What a trial would measure: near the score, with a taste of its own for a batch of 16."""
    return one.score * (1.15 if one.choice["micro_batch_size"] == 16 else 1.0)


def made_search(folder: Path) -> search.Search:
    return search.Search(folder / "journal.log", predicted(), recipes=RECIPES)


def run_search(folder: Path, limit: MemoryLimit = LIMIT, world: World = true_rate, most: int = 16) -> search.Search:
    finder = made_search(folder)
    while wave := finder.next(limit, min(4, most - len(finder.results))):
        for one in wave:
            finder.tell(one, world(one))
    return finder


def best_rate(finder: search.Search) -> float:
    return max(rate for rate in finder.results.values() if rate is not None)


def test_the_first_wave_begins_with_the_best_prediction_and_is_not_one_guess_four_times(tmp_path):
    wave = made_search(tmp_path).next(LIMIT, 4)
    assert wave[0].score == max(one.score for one in predicted() if LIMIT.fits(one))
    assert len({one.choice["recipe"] for one in wave}) > 1


@pytest.mark.parametrize(
    ("unlike", "factor"),
    [
        ("nothing", lambda _: 1.0),
        ("recomputing costs nothing", lambda c: {"all": 1.5, "offload": 1.4, "every-2": 1.2}.get(c["recompute"], 1.0)),
        ("stock is the fastest", lambda c: 2.0 if c["recipe"] == "stock" else 1.0),
        ("the reference is the fastest", lambda c: 4.0 if c["recipe"] == "reference" else 1.0),
        ("small batches are the fastest", lambda c: c["micro_batch_size"] ** -0.5),
    ],
)
def test_a_search_finds_the_best_where_its_predictions_are_wrong(tmp_path, unlike, factor):
    def world(one: Candidate) -> float:
        return true_rate(one) * factor(one.choice)

    fitting = [one for one in predicted() if LIMIT.fits(one)]
    finder = run_search(tmp_path, world=world)
    assert best_rate(finder) >= 0.98 * max(map(world, fitting)), unlike
    assert len(finder.results) <= 0.15 * len(fitting)


def test_every_recipe_is_tried_once_before_a_search_ends(tmp_path):
    assert {BY_KEY[key].choice["recipe"] for key in run_search(tmp_path).results} == set(RECIPES)


def test_nothing_is_measured_that_does_not_fit(tmp_path):
    limit = MemoryLimit(9 * GIB)
    finder = run_search(tmp_path, limit)
    assert finder.results
    assert all(limit.fits(BY_KEY[key]) for key in finder.results)


def test_a_recipe_that_breaks_is_left_alone(tmp_path):
    finder = made_search(tmp_path)
    while wave := finder.next(LIMIT, 2):
        for one in wave:
            finder.tell(one, None if one.choice["recipe"] == "fast" else true_rate(one))
    assert len([key for key in finder.results if BY_KEY[key].choice["recipe"] == "fast"]) <= 4
    assert {finalist.choice["recipe"] for finalist in finder.finalists(LIMIT, 3)} <= {"stock", "reference"}


def test_one_that_was_too_large_says_nothing_about_speed(tmp_path):
    finder = made_search(tmp_path)
    first, *_ = finder.next(LIMIT, 1)
    finder.tell(first, None, is_too_large=True)
    (again,) = finder.next(LIMIT, 1)
    assert again.choice["recipe"] == first.choice["recipe"]


def test_what_was_told_is_known_to_the_next_process(tmp_path):
    before = run_search(tmp_path, most=6).results
    again = made_search(tmp_path)
    assert again.results == before
    again.tell(BY_KEY[next(iter(before))], 1.0)
    assert again.results == before, "a candidate is told once"


def test_a_candidate_that_failed_counts_as_tried_and_is_never_the_best(tmp_path):
    finder, one = made_search(tmp_path), predicted()[0]
    finder.tell(one, None)
    assert finder.results == {one.key: None}
    assert not finder.finalists(MemoryLimit(21 * GIB), 3)


def test_the_finalists_are_the_fastest_and_the_smallest_that_should_be_half_as_fast(tmp_path):
    finder = run_search(tmp_path)
    best, smallest, *close = finder.finalists(LIMIT, 3)
    assert true_rate(best) == best_rate(finder)
    assert true_rate(smallest) >= 0.45 * true_rate(best)
    assert smallest.peak_bytes == min(
        one.peak_bytes or 0 for one in predicted() if true_rate(one) >= 0.55 * true_rate(best)
    )
    assert all(true_rate(one) * search.CLOSE >= true_rate(best) for one in close)
    assert finder.finalists(LIMIT, 1) == [best]


# The answer ----------------------------------------------------------------------------------------------------------


def result(trial: Trial, rate: float, peak: int | None, status: TrialStatus = TrialStatus.SUCCEEDED) -> TrialResult:
    steps = Steps(
        step_time_sec=[1.0, 1.0], samples=[1, 1], tokens=[2000, 2000], useful_tokens=[rate, rate], loss=[2.0, 1.0]
    )
    made = synthetic.result(PlannedTrial(trial_id=trial.trial_id, trial=trial), status=status)
    return dataclasses.replace(made, steps=steps, metrics=synthetic.metrics_of(steps, peak_vram_bytes=peak))


def figures(index: int, rate: float, gib: float) -> pareto.MeasuredCandidate:
    trial = predicted()[index].trial
    return pareto.measured(trial, [result(trial, rate, round(gib * GIB))], None, 2.0)


def test_the_front_holds_what_nothing_beats_in_both():
    quick, middle, small, worse = figures(0, 900, 20), figures(1, 600, 12), figures(2, 300, 6), figures(3, 500, 14)
    kept = pareto.front([worse, small, quick, middle])
    assert [one.trial.trial_id for one in kept] == [one.trial.trial_id for one in (quick, middle, small)]
    named = pareto.titles(kept)
    assert list(named.values()) == ["fastest, cheapest", "", "smallest"]


def test_dollars_follow_from_price_and_rate():
    assert figures(0, 1000, 20).usd_per_million_useful_tokens == pytest.approx(2.0 / 3600 * 1000)


def test_several_processes_give_an_interval_and_one_gives_none():
    trial = predicted()[0].trial
    one = pareto.measured(trial, [result(trial, 100.0, None)], None, None)
    three = pareto.measured(trial, [result(trial, rate, None) for rate in (100.0, 101.0, 99.0)], None, None)
    assert (one.processes, one.interval) == (1, None)
    assert (three.processes, three.interval.over) == (3, "processes")
    assert three.useful_tokens_per_sec == pytest.approx(100.0, rel=1e-3)
    deviation = 1.0 / math.sqrt(3)  # of the mean of three; Student's t at two degrees of freedom is 4.303
    assert three.interval.low == pytest.approx(100.0 - 4.303 * deviation, abs=0.1)
    assert three.interval.high == pytest.approx(100.0 + 4.303 * deviation, abs=0.1)


def test_small_amounts_keep_their_digits(tmp_path, capsys):
    found = dataclasses.replace(figures(0, 12.34, 20), usd_per_million_useful_tokens=0.00185)
    searched = search_state.TuneRecord(
        tune_id="t", gpu="NVIDIA A10", model_sha256="", data_sha256="", longest=1, depth=1, limit_bytes=None,
        settings={}, candidates=[],
    )  # fmt: skip
    output.show_answer(Settings(root=tmp_path), searched, [found], {"tried": 1, "worker_sec": 60.0})
    assert " 12.3 " in (said := capsys.readouterr().out)
    assert "0.00185" in said


def test_what_failed_has_no_figures():
    trial = predicted()[0].trial
    assert pareto.measured(trial, [result(trial, 1.0, None, TrialStatus.FAILED)], None, None) is None


def test_the_answer_is_plain_json_and_its_best_a_trial_that_can_be_run():
    kept = pareto.front([figures(0, 900, 20), figures(2, 300, 6)])
    said = json.loads(json.dumps(pareto.document(kept, {"tune_id": "t"})))
    assert [one["best_at"] for one in said["front"]] == ["fastest, cheapest", "smallest"]
    assert Trial.from_json(said["front"][0]["trial"]) == kept[0].trial


# On disk -------------------------------------------------------------------------------------------------------------


def a_record() -> search_state.TuneRecord:
    return search_state.TuneRecord(
        tune_id="20261121-000000-tune",
        gpu="NVIDIA A10",
        model_sha256="m",
        data_sha256="d",
        longest=512,
        depth=32,
        limit_bytes=20 * GIB,
        settings={"fleet": {"size": 4}},
        candidates=predicted()[:3],
    )


def test_a_search_is_read_as_it_was_written(tmp_path):
    kept = search_state.create(tmp_path, a_record())
    kept.add_run("run-1", is_final=False)
    kept.add_run("run-2", is_final=True)
    again = search_state.find(tmp_path, None)
    assert (again, again.waves, again.final) == (kept, ["run-1"], "run-2")


def test_two_searches_of_one_second_have_folders_of_their_own(tmp_path):
    first, second = search_state.create(tmp_path, a_record()), search_state.create(tmp_path, a_record())
    assert first.tune_id != second.tune_id
    assert search_state.find(tmp_path, None).tune_id == second.tune_id


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "cannot be used"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 9'), "expected 2, found 9"),
        (lambda text: text.replace('"limit_bytes"', '"limit"'), "cannot be used: limit: unknown field"),
    ],
)
def test_a_damaged_search_is_refused_with_what_to_type(tmp_path, damage, says):
    kept = search_state.create(tmp_path, a_record())
    path = (kept.folder or tmp_path) / search_state.RECORD_FILE
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=says):
        search_state.find(tmp_path, None)


def test_a_search_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(UsageError, match="`inv tune` to begin one"):
        search_state.find(tmp_path, None)
    kept = search_state.create(tmp_path, a_record())
    with pytest.raises(UsageError, match=kept.tune_id):
        search_state.find(tmp_path, "another")
