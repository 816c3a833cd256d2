"""Answer of a search, and what is written of it: trials are answered by a function, everything else is real."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from bench.records import Trial
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.records.version import VERSION
from remote.fleet.ledger import Ledger
from tasks.errors import ConfirmationRequired, SomeTrialsFailed, UsageError
from tasks.fleet import runner
from tasks.fleet.plan import plan_trials
from tasks.fleet.run_store import BEST_FILE, SEARCH_FILE
from tasks.settings.load import Settings
from tasks.tuning import pareto, search_loop, search_state, space, tune
from tasks.tuning.search_loop import assign_finalists
from tasks.tuning.space import MemoryLimit
from tests.support.tuning_candidates import (
    BY_KEY,
    GIB,
    STOCK,
    find_fast,
    make_record,
    measured_candidate,
    predicted_candidates,
    result,
)


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
        settings={}, candidates=[], inputs={},
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


def test_a_search_is_read_as_it_was_written(tmp_path):
    kept = search_state.create(tmp_path, make_record())
    kept.add_run("run-1", is_final=False)
    kept.add_run("run-2", is_final=True)
    again = search_state.find(tmp_path, None)
    assert (again, again.waves, again.final) == (kept, ["run-1"], "run-2")


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
    planned = space.with_held_layers(find_fast(8), space.MemoryLimit(21 * GIB), 2)
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
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 9'), r"tune.json: .* 9\.x; .* 2\.x;"),
        (lambda text: text.replace(f'"{VERSION}"', '"1.0.0"'), r"tune.json: .* 1\.x; .* 2\.x;"),
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
