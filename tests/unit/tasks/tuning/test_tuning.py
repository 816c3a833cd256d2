"""A search without a GPU: trials are answered by a function, everything else is real."""

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from bench.records.result import Steps, TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from bench.records.validation import ALL_LINEAR
from remote.fleet.ledger import Ledger
from tasks.errors import ConfirmationRequired, SomeTrialsFailed, UsageError
from tasks.fleet import runner
from tasks.fleet.plan import plan_trials
from tasks.fleet.run_store import BEST_FILE, SEARCH_FILE
from tasks.settings.load import Settings
from tasks.tuning import pareto, search, search_loop, search_state, space, tune
from tasks.tuning.search_loop import assign_finalists
from tasks.tuning.space import Candidate, MemoryLimit, TrialObservation
from tests.support.reports import synthetic

GIB = 2**30
RECIPES = ("reference", "stock", "fast")


def make_candidates(**changes: Any) -> list[Candidate]:
    fields: dict[str, Any] = {
        "model": "models/m",
        "data": "data/d.jsonl",
        "data_options": None,
        "profile": "gpu",
        "recipes": RECIPES,
        "longest": 512,
        "lora": {"lora_rank": 16, "lora_alpha": 32, "lora_targets": ALL_LINEAR},
        "steps": (3, 6),
        "seed": 1,
        "samples": 10_000,
    }
    return space.candidates(**(fields | changes))


def predicted_candidates() -> list[Candidate]:
    """Return candidates with plausible predictions: memory grows with the batch, the fast recipe needs least."""
    base = {"reference": 6.0, "stock": 5.0, "fast": 4.5}
    row_gib = {"reference": 1.0, "stock": 0.5, "fast": 0.4}
    share = {"none": 1.0, "every-4": 0.8, "every-2": 0.6, "all": 0.2, "offload": 0.1}
    speed = {"reference": 1.0, "stock": 2.0, "fast": 2.6}
    layouts = {"pad": 0.4, "bucket": 0.8, "varlen": 1.0}
    candidates = []
    for candidate in make_candidates():
        choice = candidate.choice
        gib = (
            base[choice["recipe"]] + row_gib[choice["recipe"]] * choice["micro_batch_size"] * share[choice["recompute"]]
        )
        batch = choice["micro_batch_size"] / (choice["micro_batch_size"] + 2)
        recompute_factor = 0.7 + 0.3 * share[choice["recompute"]]
        score = 1000.0 * speed[choice["recipe"]] * layouts[choice["layout"]] * batch * recompute_factor
        layer = round(0.4 * GIB) if choice["recipe"] == "fast" else 0
        candidates.append(dataclasses.replace(candidate, peak_bytes=round(gib * GIB), layer_bytes=layer, score=score))
    return candidates


BY_KEY = {candidate.key: candidate for candidate in predicted_candidates()}
STOCK = next(candidate for candidate in BY_KEY.values() if candidate.choice["recipe"] == "stock")


# The space -----------------------------------------------------------------------------------------------------------


def test_the_candidates_are_distinct_and_only_the_fast_recipe_recomputes_in_part():
    names = [candidate.key for candidate in make_candidates()]
    assert len(names) == len(set(names)) == 3 * 7 * (2 + 2 + 5)
    assert {candidate.choice["recompute"] for candidate in make_candidates(recipes=("stock",))} == {"none", "all"}
    assert max(candidate.trial.micro_batch_size for candidate in make_candidates(samples=5)) == 4


def test_products_in_8_bits_are_searched_where_a_setting_names_them():
    candidates = make_candidates(recipes=("fast", "fast-int8-backward", "fast-int8"))
    products = Counter(candidate.trial.matmul for candidate in candidates)
    assert products == {"bf16": 105, "int8_backward": 105, "int8": 105}
    assert {candidate.trial.recipe for candidate in candidates} == {"fast"}
    assert len({candidate.key for candidate in candidates}) == len(candidates)
    assert {candidate.trial.matmul for candidate in make_candidates()} == {"bf16"}, "and nowhere else"


@pytest.mark.parametrize(
    ("percent", "profile", "positions", "longest"),
    [(99, "gpu", 32768, 640), (100, "gpu", 32768, 4032), (100, "gpu", 2048, 2048), (99, "tiny", 512, 80)],
)
def test_rows_are_as_long_as_the_samples_that_are_kept_whole(percent, profile, positions, longest):
    assert space.max_seq_len({"99": 584, "100": 4001}, percent, profile, positions) == longest


# Memory --------------------------------------------------------------------------------------------------------------


def fast(batch: int, recompute: str = "none") -> Candidate:
    choice = {"recipe": "fast", "layout": "pad", "micro_batch_size": batch, "recompute": recompute}
    return next(candidate for candidate in predicted_candidates() if candidate.choice == choice)


@pytest.mark.parametrize(
    ("limit", "gpu", "expected"),
    [
        (12.0, {"memory_bytes": 24 * GIB, "largest_peak_bytes": 21 * GIB}, 12 * GIB),
        (None, {"memory_bytes": 24 * GIB, "largest_peak_bytes": 21 * GIB}, 21 * GIB),
        (None, {"memory_bytes": 24 * GIB}, 24 * GIB),  # an older image
        (None, {"memory_bytes": None, "largest_peak_bytes": None}, None),
        (None, None, None),
    ],
)
def test_without_a_limit_of_the_user_the_worker_says_what_fits_its_gpu(limit, gpu, expected):
    assert tune._limit_bytes(limit, gpu) == expected


EIGHT, LIMIT = fast(8), MemoryLimit(21 * GIB)
PEAK = EIGHT.peak_bytes or 0


def test_a_prediction_close_to_the_limit_does_not_count_as_fitting():
    assert all(MemoryLimit(None).fits(candidate) for candidate in predicted_candidates())
    assert not MemoryLimit(round(PEAK * 1.02)).fits(EIGHT)
    assert MemoryLimit(round(PEAK * 1.04)).fits(EIGHT)


def test_a_measured_peak_corrects_its_recipe_and_no_other():
    limit = MemoryLimit(40 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=round(PEAK * 1.2))])
    assert limit.corrected_peak(fast(4)) == pytest.approx((fast(4).peak_bytes or 0) * 1.2, rel=1e-6)
    assert set(limit.factors) == {"fast"}


def test_running_out_of_memory_raises_the_prediction_until_it_says_so():
    limit = MemoryLimit(20 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=None)])
    assert [limit.fits(candidate) for candidate in (EIGHT, fast(16), fast(1, "all"))] == [False, False, True]


def test_as_many_layers_are_held_as_the_corrected_prediction_has_room_for():
    limit = MemoryLimit(21 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=round(PEAK * 1.2))])
    held = space.with_held_layers(EIGHT, limit, 32)
    more = dataclasses.replace(held, peak_bytes=(held.peak_bytes or 0) + EIGHT.layer_bytes)
    assert limit.fits(held)
    assert not limit.fits(more)
    assert held.key == f"{EIGHT.key}-held-{held.trial.held_layers}"
    assert held.trial.digest() == dataclasses.replace(EIGHT.trial, held_layers=held.trial.held_layers).digest()
    assert held.peak_bytes == PEAK + held.trial.held_layers * EIGHT.layer_bytes
    assert space.with_held_layers(EIGHT, limit, 3).trial.held_layers == 3, "a model has no more layers than it has"


def test_nothing_is_held_without_room_a_limit_or_a_recipe_that_can():
    assert space.with_held_layers(EIGHT, MemoryLimit(round(PEAK * 1.04)), 32) is None
    assert space.with_held_layers(EIGHT, MemoryLimit(None), 32) is None
    assert space.with_held_layers(STOCK, MemoryLimit(80 * GIB), 32) is None


# The surrogate -------------------------------------------------------------------------------------------------------


def predicted_rate(expected: search.Prediction, candidate: Candidate) -> float:
    return math.exp(expected.mean[list(BY_KEY).index(candidate.key)])


def test_a_measurement_sets_its_candidate_and_moves_similar_ones_most():
    measured, similar = fast(4), fast(2)
    known = {EIGHT.key: EIGHT.score, STOCK.key: STOCK.score}
    before = search.Surrogate(predicted_candidates()).posterior({**known, measured.key: measured.score})
    after = search.Surrogate(predicted_candidates()).posterior({**known, measured.key: measured.score / 2})
    moved = [
        predicted_rate(after, candidate) / predicted_rate(before, candidate) for candidate in (measured, similar, STOCK)
    ]
    assert moved[0] == pytest.approx(0.5, rel=0.1)
    assert moved[1] < 0.8 < 0.95 < moved[2]


def test_a_gpu_of_another_speed_leaves_the_order_as_it_was():
    assert predicted_rate(search.Surrogate(predicted_candidates()).posterior({}), EIGHT) == pytest.approx(EIGHT.score)
    expected = search.Surrogate(predicted_candidates()).posterior({EIGHT.key: 700.0 * EIGHT.score})
    for other in predicted_candidates():
        assert predicted_rate(expected, other) / other.score == pytest.approx(700.0, rel=0.1)


def test_measured_candidates_have_less_variance_and_a_surprise_raises_all_variances():
    other = fast(4)
    surrogate = search.Surrogate(predicted_candidates())
    as_expected = surrogate.posterior({EIGHT.key: EIGHT.score, other.key: other.score}).deviation
    surprised = surrogate.posterior({EIGHT.key: EIGHT.score, other.key: other.score / 50}).deviation
    known = dict(zip(BY_KEY, as_expected, strict=True))
    assert known[EIGHT.key] < min(known[key] for key in BY_KEY if key not in (EIGHT.key, other.key))
    assert all(after > before for before, after in zip(as_expected, surprised, strict=True))


def test_the_expected_improvement_is_the_mean_gain():
    rng = random.Random(3)
    for mean, deviation in ((0.0, 0.1), (-0.2, 0.3), (0.1, 0.05)):
        samples = [max(0.0, math.expm1(rng.gauss(mean, deviation))) for _ in range(200_000)]
        assert search.expected_improvement(mean, deviation) == pytest.approx(sum(samples) / len(samples), rel=0.03)
    assert search.expected_improvement(-0.1, 0.0) == 0.0
    assert search.expected_improvement(0.1, 0.0) == pytest.approx(math.expm1(0.1))


# The search ----------------------------------------------------------------------------------------------------------

RateFunction = Callable[[Candidate], float]


def true_rate(candidate: Candidate) -> float:
    """Return what a trial would measure: the score, and 15 % more for a batch of 16."""
    return candidate.score * (1.15 if candidate.choice["micro_batch_size"] == 16 else 1.0)


@dataclasses.dataclass
class Finder:
    """A search whose trials `measure` answers."""

    measure: Callable[[Candidate], float | None] = true_rate
    limit: MemoryLimit = LIMIT

    def __post_init__(self) -> None:
        self.surrogate, self.outcomes = search.Surrogate(predicted_candidates()), dict[str, float | None]()

    def wave(self, count: int = 4) -> list[Candidate]:
        return search.choose_wave(self.surrogate, self.outcomes, self.limit, count)

    def run(self, count: int = 4) -> "Finder":
        while wave := self.wave(min(count, 16 - len(self.outcomes))):
            self.outcomes.update({candidate.key: self.measure(candidate) for candidate in wave})
        return self

    def finalists(self, maximum: int = 3) -> list[Candidate]:
        return search.finalists(self.surrogate, self.outcomes, self.limit, maximum)

    @property
    def best_rate(self) -> float:
        return max(filter(None, self.outcomes.values()))


def test_the_first_wave_begins_with_the_best_prediction_and_is_not_one_guess_four_times():
    wave = Finder().wave()
    assert wave[0].score == max(candidate.score for candidate in predicted_candidates() if LIMIT.fits(candidate))
    assert len({candidate.choice["recipe"] for candidate in wave}) > 1


@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(lambda _: 1.0, id="nothing"),
        pytest.param(
            lambda c: {"all": 1.5, "offload": 1.4, "every-2": 1.2}.get(c["recompute"], 1.0), id="free recomputing"
        ),
        pytest.param(lambda c: 2.0 if c["recipe"] == "stock" else 1.0, id="stock is the fastest"),
        pytest.param(lambda c: 4.0 if c["recipe"] == "reference" else 1.0, id="reference is the fastest"),
        pytest.param(lambda c: c["micro_batch_size"] ** -0.5, id="small batches are the fastest"),
    ],
)
def test_a_search_finds_the_best_where_its_predictions_are_wrong(factor):
    def world(candidate: Candidate) -> float:
        return true_rate(candidate) * factor(candidate.choice)

    fitting = [candidate for candidate in predicted_candidates() if LIMIT.fits(candidate)]
    finder = Finder(world).run()
    assert finder.best_rate >= 0.98 * max(map(world, fitting))
    assert len(finder.outcomes) <= 0.15 * len(fitting)
    assert {BY_KEY[key].choice["recipe"] for key in finder.outcomes} == set(RECIPES), "each once"


def test_nothing_is_measured_that_does_not_fit():
    finder = Finder(limit=MemoryLimit(9 * GIB)).run()
    assert finder.outcomes
    assert all(finder.limit.fits(BY_KEY[key]) for key in finder.outcomes)


def test_a_recipe_that_fails_is_avoided():
    finder = Finder(lambda candidate: 0.0 if candidate.choice["recipe"] == "fast" else true_rate(candidate)).run(2)
    assert len([key for key in finder.outcomes if BY_KEY[key].choice["recipe"] == "fast"]) <= 4
    assert {finalist.choice["recipe"] for finalist in finder.finalists()} <= {"stock", "reference"}


def test_a_candidate_that_was_too_large_gives_no_information_about_speed():
    finder = Finder()
    (first,) = finder.wave(1)
    finder.outcomes[first.key] = None
    (again,) = finder.wave(1)
    assert again.choice["recipe"] == first.choice["recipe"]
    assert not finder.finalists(), "it is never the best"


def test_the_finalists_are_the_fastest_and_the_smallest_that_should_be_half_as_fast():
    finder = Finder().run()
    best, smallest, *close = finder.finalists()
    assert true_rate(best) == finder.best_rate
    assert true_rate(smallest) >= 0.45 * true_rate(best)
    assert smallest.peak_bytes == min(
        candidate.peak_bytes or 0
        for candidate in predicted_candidates()
        if true_rate(candidate) >= 0.55 * true_rate(best)
    )
    assert all(true_rate(candidate) * search.CLOSE_FACTOR >= true_rate(best) for candidate in close)
    assert finder.finalists(1) == [best]


# The answer ----------------------------------------------------------------------------------------------------------


def result(trial: Trial, rate: float, peak: int | None, status: TrialStatus = TrialStatus.SUCCEEDED) -> TrialResult:
    steps = Steps(
        step_time_sec=[synthetic.OF_A_FINE_TIMER] * 2,
        samples=[1, 1],
        tokens=[2000, 2000],
        useful_tokens=[rate, rate],
        loss=[2.0, 1.0],
    )
    made = synthetic.result(PlannedTrial(trial_id=trial.trial_id, trial=trial), status=status)
    return dataclasses.replace(made, steps=steps, metrics=synthetic.metrics_of(steps, peak_vram_bytes=peak))


def measured_candidate(index: int, rate: float, gib: float) -> pareto.MeasuredCandidate:
    trial = predicted_candidates()[index].trial
    return pareto.summarize(trial, [result(trial, rate, round(gib * GIB))], None, 2.0)


def test_the_front_has_the_candidates_that_no_other_beats_in_both():
    quick, middle, small, worse = (
        measured_candidate(index, *figures) for index, figures in enumerate([(900, 20), (600, 12), (300, 6), (500, 14)])
    )
    front = pareto.front([worse, small, quick, middle])
    assert front == [quick, middle, small]
    answer = json.loads(json.dumps(pareto.document(front, {"tune_id": "t"})))
    assert [member["best_at"] for member in answer["front"]] == ["fastest, cheapest", "", "smallest"]
    assert Trial.from_json(answer["front"][0]["trial"]) == quick.trial
    assert quick.usd_per_million_useful_tokens == pytest.approx(2.0 / 3600 / 900 * 1e6)


def test_several_processes_give_an_interval_and_one_gives_none():
    trial = predicted_candidates()[0].trial
    single = pareto.summarize(trial, [result(trial, 100.0, None)], None, None)
    three = pareto.summarize(trial, [result(trial, rate, None) for rate in (100.0, 101.0, 99.0)], None, None)
    assert (single.processes, single.interval) == (1, None)
    assert (three.processes, three.interval.over) == (3, "processes")
    assert three.useful_tokens_per_sec == pytest.approx(100.0, rel=1e-3)
    # The standard deviation of the mean of three; Student's t at two degrees of freedom is 4.303.
    deviation = 1.0 / math.sqrt(3)
    assert three.interval.low == pytest.approx(100.0 - 4.303 * deviation, abs=0.1)
    assert three.interval.high == pytest.approx(100.0 + 4.303 * deviation, abs=0.1)


def test_small_amounts_keep_their_digits(tmp_path, capsys):
    candidate = dataclasses.replace(measured_candidate(0, 12.34, 20), usd_per_million_useful_tokens=0.00185)
    record = search_state.TuneRecord(
        tune_id="t", gpu="NVIDIA A10", model_sha256="", data_sha256="", longest=1, depth=1, limit_bytes=None,
        settings={}, candidates=[],
    )  # fmt: skip
    search_loop.show_answer(Settings(root=tmp_path), record, [candidate], {"tried": 1, "worker_sec": 60.0})
    assert " 12.3 " in (out := capsys.readouterr().out)
    assert "0.00185" in out


def test_the_repeats_of_a_finalist_run_on_different_workers():
    trials, names = [candidate.trial for candidate in predicted_candidates()[:3]], [f"w{index}" for index in range(4)]
    planned = assign_finalists(plan_trials(trials, names, "shard", 2), names, 2)
    places = {trial.trial_id: [plan.worker for plan in planned if plan.trial == trial] for trial in trials}
    assert list(places.values()) == [["w0", "w1"], ["w1", "w2"], ["w2", "w0"]]
    single = plan_trials(trials, names, "shard", 1)
    assert assign_finalists(single, names, 1) == single


def test_a_finalist_is_not_fastest_because_of_its_workers():
    trials, speeds = [candidate.trial for candidate in predicted_candidates()[:2]], {"a": 1.1, "b": 1.0, "c": 0.9}
    places = ((trials[0], 100.0, "abb"), (trials[1], 102.0, "bcc"))
    measured = [
        dataclasses.replace(result(trial, rate * speeds[worker], None), worker=worker)
        for trial, rate, workers in places
        for worker in workers
    ]
    rates = pareto.adjusted_rates(measured)
    assert rates[trials[1].trial_id].value / rates[trials[0].trial_id].value == pytest.approx(1.02)
    own = [each for each in measured if each.trial == trials[1]]
    summary = pareto.summarize(trials[1], own, None, None, rates[trials[1].trial_id])
    assert (summary.processes, summary.interval) == (3, rates[trials[1].trial_id])
    both = [summary, dataclasses.replace(summary, trial=trials[0])]
    assert pareto.not_shown_slower(both, measured) == [trials[0].trial_id]
    assert pareto.not_shown_slower(both, [result(trials[0], 10.0, None), *own]) == []


def test_a_failed_candidate_has_no_figures():
    trial = predicted_candidates()[0].trial
    assert pareto.summarize(trial, [result(trial, 1.0, None, TrialStatus.FAILED)], None, None) is None


# On disk -------------------------------------------------------------------------------------------------------------


def make_record() -> search_state.TuneRecord:
    return search_state.TuneRecord(
        tune_id="20261121-000000-tune",
        gpu="NVIDIA A10",
        model_sha256="m",
        data_sha256="d",
        longest=512,
        depth=32,
        limit_bytes=20 * GIB,
        settings={"fleet": {"size": 4}},
        candidates=predicted_candidates()[:3],
    )


def test_a_search_is_read_as_it_was_written(tmp_path):
    kept = search_state.create(tmp_path, make_record())
    kept.add_run("run-1", is_final=False)
    kept.add_run("run-2", is_final=True)
    again = search_state.find(tmp_path, None)
    assert (again, again.waves, again.final) == (kept, ["run-1"], "run-2")


def test_a_search_with_old_names_of_recipes_and_products_is_read_and_keeps_its_recipes(tmp_path):
    candidates = make_candidates(recipes=("fast", "fast-int8"))
    kept = search_state.create(tmp_path, dataclasses.replace(make_record(), candidates=candidates))
    path = (kept.folder or tmp_path) / SEARCH_FILE
    text = path.read_text().replace("fast-int8", "fast-eight").replace('"matmul": "int8"', '"products": "eight"')
    path.write_text(text.replace('"matmul": "bf16"', '"products": "bf16"'))
    resumed = search_state.find(tmp_path, None)
    assert {candidate.choice["recipe"] for candidate in resumed.candidates} == {"fast", "fast-eight"}
    assert [candidate.trial.matmul for candidate in resumed.candidates] == [
        candidate.trial.matmul for candidate in candidates
    ]


def test_a_search_whose_finalists_are_all_withheld_keeps_no_earlier_answer(tmp_path):
    record = search_state.create(tmp_path, make_record())
    record.write_answer({}, BY_KEY[STOCK.key].trial.to_text())
    with pytest.raises(SomeTrialsFailed):
        search_loop._write_answer(Settings(root=tmp_path), record, 1, "run-1", [], None)
    assert [path.name for path in (record.folder or tmp_path).iterdir()] == [SEARCH_FILE]


def write_wave(folder: Path, record: search_state.TuneRecord, run_id: str, *results: TrialResult) -> None:
    for number, each in enumerate(results):
        target = folder / run_id / "trials" / f"{each.trial_id}.{number}"
        target.mkdir(parents=True)
        each.write(target)
    record.add_run(run_id, is_final=False)


def test_a_resumed_search_knows_every_outcome_from_the_results_of_its_waves(tmp_path):
    folder = Settings(root=tmp_path).results_folder
    record = search_state.create(folder, make_record())
    (record.folder / "journal.log").write_text("of an older version")
    fast, failed, large = (candidate.trial for candidate in record.candidates)
    wave = [
        result(fast, 800, 5 * GIB),
        result(failed, 1, None, TrialStatus.FAILED),
        result(large, 1, None, TrialStatus.LOST),
    ]
    write_wave(folder, record, "wave-1", *wave)
    write_wave(folder, record, "wave-2", result(large, 1, None, TrialStatus.OUT_OF_MEMORY))
    outcomes, limit = search_loop.measured_outcomes(Settings(root=tmp_path), search_state.find(folder, None))
    rate = pytest.approx(wave[0].metrics.useful_tokens_per_sec)
    assert outcomes == {fast.trial_id: rate, failed.trial_id: 0.0, large.trial_id: None}
    assert limit.factors.keys() == {"reference"}

    other = dataclasses.replace(result(fast, 1, None), fingerprint={"gpu_name": "NVIDIA H200"})
    impossible = result(fast, 1, None)
    impossible = dataclasses.replace(
        impossible, metrics=dataclasses.replace(impossible.metrics, useful_tokens_per_sec=-1.0)
    )
    for number, (bad, message) in enumerate(((other, r"H200.*A10"), (impossible, "useful_tokens_per_sec is -1"))):
        write_wave(folder, record, f"wave-{number}-bad", bad)
        with pytest.raises(ConfirmationRequired, match=message):
            search_loop.measured_outcomes(Settings(root=tmp_path), record)
        record.waves.pop()


def test_a_finalist_of_which_a_trial_failed_is_passed_over_for_a_slower_one(tmp_path):
    settings = Settings(root=tmp_path)
    record = search_state.create(settings.results_folder, make_record())
    fast, slow, _ = (candidate.trial for candidate in record.candidates)
    full = (result(fast, 900, None), result(fast, 1, None, TrialStatus.OUT_OF_MEMORY), result(slow, 800, None))
    write_wave(settings.results_folder, record, "final", *full)
    measured, _ = search_loop._measure_finalists(settings, record, MemoryLimit(None), "final")
    assert [candidate.trial.trial_id for candidate in measured] == [slow.trial_id]
    write_wave(settings.results_folder, record, "only", *full[:2])
    measured, _ = search_loop._measure_finalists(settings, record, MemoryLimit(None), "only")
    assert [candidate.trial.trial_id for candidate in measured] == [fast.trial_id]


def test_a_resumed_search_measures_the_held_variant_that_its_final_run_planned(tmp_path, monkeypatch):
    settings = Settings(root=tmp_path)
    settings = settings.model_copy(update={"tune": settings.tune.model_copy(update={"quality": False})})
    planned = space.with_held_layers(EIGHT, LIMIT, 2)
    record = dataclasses.replace(make_record(), candidates=predicted_candidates(), held_variants=[planned])
    record = search_state.create(settings.results_folder, record)
    write_wave(settings.results_folder, record, "wave", result(STOCK.trial, 700, GIB))
    record.add_run("final", is_final=True)
    for number, each in enumerate((result(STOCK.trial, 700, GIB), result(planned.trial, 900, GIB))):
        folder = settings.results_folder / "final" / "trials" / str(number)
        folder.mkdir(parents=True)
        each.write(folder)
    monkeypatch.setattr(search_loop, "_run_candidates", lambda *_args, **_more: "final")
    search_loop.search(settings, search_state.find(settings.results_folder, None), [], plain=True)
    assert Trial.read(record.folder / BEST_FILE).held_layers == 2


def test_a_plan_of_which_a_killed_search_started_no_trial_is_taken_again(tmp_path):
    settings = Settings(root=tmp_path)
    planned = plan_trials([STOCK.trial], ["w0"], "shard", 1)

    def write() -> tuple[str, Ledger]:
        run = runner.new_record(settings, "tune-wave-1", planned, ["w0"], inputs={"data": {"sha256": "d"}})
        run, _, ledger = runner.write_plan_once(settings, run)
        return run.run_id, ledger

    first, ledger = write()
    ledger.path.unlink()
    again, ledger = write()
    ledger.record_start(planned[0].trial_id, 1, "w0", "job")
    assert first == again != write()[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "tune.json: .*`inv tune`"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 9'), "expected 2, found 9"),
        (lambda text: text.replace('"limit_bytes"', '"limit"'), "limit: unknown field"),
    ],
)
def test_a_damaged_search_is_an_error_with_the_next_command(tmp_path, damage, message):
    kept = search_state.create(tmp_path, make_record())
    path = (kept.folder or tmp_path) / SEARCH_FILE
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=message):
        search_state.find(tmp_path, None)


def test_the_error_for_a_missing_search_lists_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="`inv tune`"):
        search_state.find(tmp_path, None)
    first, second = search_state.create(tmp_path, make_record()), search_state.create(tmp_path, make_record())
    with pytest.raises(UsageError, match=first.tune_id):
        search_state.find(tmp_path, "another")
    assert first.tune_id != search_state.find(tmp_path, None).tune_id == second.tune_id, "of one second"


@pytest.mark.parametrize(
    "change", [{"gpu": {"name": "NVIDIA H200"}}, {"gpu": None}, {"model": {"sha256": "x"}}, {"data": {"sha256": "x"}}]
)
def test_a_search_is_resumed_on_the_same_gpu_model_and_data_only(change):
    observed = {"gpu": {"name": "NVIDIA A10"}, "model": {"sha256": "m"}, "data": {"sha256": "d"}}
    tune.check_same_inputs(make_record(), observed)
    with pytest.raises(ConfirmationRequired, match="`inv tune`"):
        tune.check_same_inputs(make_record(), observed | change)
