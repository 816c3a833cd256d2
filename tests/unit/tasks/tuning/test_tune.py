"""Both runs of a search, what the second measures, and the answer: trials are answered by a function.

Not covered: plan and survey of real workers; tests/system/tuning/test_inv_tune.py.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from bench.records import Trial, schema
from bench.records.paths import LEDGER_FILE
from bench.records.quality import LossCheck, LossPair, QualityRecord, reference_of
from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.trial import SCALES
from remote.fleet.ledger import Ledger
from remote.hosts.host_protocol import Host
from tasks.clients.workers import BenchProgram
from tasks.errors import ConfirmationRequired, RetryableError, SomeTrialsFailed, TaskFailed, UsageError
from tasks.fleet import plan, runner
from tasks.fleet.run_store import BEST_FILE
from tasks.settings.layers import Settings, load
from tasks.tuning import loss_pairs, tune
from tests.support.reports import synthetic
from tests.support.tuning_candidates import GIB, make_search, make_trials, predicted_candidates

SPEEDS = {"fast": 0.05, "stock": 0.1, "reference": 0.2}  # seconds a step
OBSERVED = {"gpu": {"name": "NVIDIA A10"}, "model": {"sha256": "m", "depth": 2}, "data": {"sha256": "d", "samples": 99}}
SHORT = tuple(
    dataclasses.replace(trial, profile="tiny", measured_steps=6)
    for trial in make_trials()
    if trial.name in ("reference-pad-4-none", "stock-pad-4-none", "fast-pad-4-none", "fast-pad-2-none")
)
STOCK, FAST = (next(trial for trial in SHORT if trial.name == name) for name in ("stock-pad-4-none", "fast-pad-4-none"))


@dataclasses.dataclass
class Fleet:
    """A fleet whose trials take SPEEDS. `ends` are other ends by trial name; `ran` are the ids of trials that ran."""

    settings: Settings
    ends: dict[str, ReasonCode] = dataclasses.field(default_factory=dict)
    ran: list[str] = dataclasses.field(default_factory=list)
    compared: list[Path] = dataclasses.field(default_factory=list)

    def resume(self, _settings: Settings, run_id: str, *_: object, **__: object) -> None:
        folder = self.settings.results_folder / run_id
        run = RunRecord.read(folder / "run.json")
        ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        for planned in run.planned:
            if not ledger.is_open(planned.trial_id):
                continue
            self.ran.append(planned.trial.name)
            end = Outcome(TrialStatus.SUCCEEDED)
            if (code := self.ends.get(planned.trial.name)) is not None:
                end = Outcome.of(code, "why")
            worker = planned.worker or run.workers[0]
            step = SPEEDS[planned.trial.recipe] * (0.9 if planned.trial.held_layers else 1.0)
            result = synthetic.result(
                planned, worker=worker, run_id=run_id, status=end.status, step_time_sec=step, exact=True
            )
            synthetic.write_result(folder, result)
            ledger.record_start(planned.trial_id, 1, worker, "job")
            ledger.record_end(planned.trial_id, end)


@pytest.fixture
def fleet(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(plan, "git_state", lambda _: {})
    settings = load(context(text="model: {path: models/m}\ndata: {path: data/d.jsonl}\n"))
    settings.results_folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(settings)

    def survey(_program: object, _host: object, trials: list[Trial]) -> Mapping[str, Any]:
        by_name = {each.trial.name: each.predicted for each in predicted_candidates()}
        other = by_name["reference-pad-4-all"]
        return {**OBSERVED, "trials": [schema.to_json(by_name.get(trial.name, other)) for trial in trials]}

    monkeypatch.setattr(runner, "resume", fleet.resume)
    monkeypatch.setattr(BenchProgram, "survey", survey)
    monkeypatch.setattr(loss_pairs, "compare_run", lambda _settings, folder, *_, **__: fleet.compared.append(folder))
    return fleet


def search(fleet: Fleet, *trials: Trial, run: RunRecord | None = None) -> tuple[RunRecord, Path]:
    """Run or resume a search of these trials; return the plan of its short trials and their folder."""
    folder = fleet.settings.results_folder
    if run is None:
        run = runner.write_plan(fleet.settings.results_folder, make_search(*trials))
    hosts: list[Host] = [Named("worker-1")]  # type: ignore[list-item]
    tune._search(fleet.settings, run, folder / run.run_id, hosts, plain=True)
    return run, folder / run.run_id


@dataclasses.dataclass
class Named:
    name: str


def second_run(fleet: Fleet, search_run: RunRecord) -> tuple[RunRecord, Path]:
    folder = tune._second_run(fleet.settings, search_run.run_id)
    assert folder is not None
    return RunRecord.read(folder / "run.json"), folder


def test_the_fastest_is_measured_beside_the_baseline_and_named(fleet: Fleet) -> None:
    run, folder = search(fleet, *SHORT)
    final, final_folder = second_run(fleet, run)
    held = next(planned.trial for planned in final.planned if planned.trial.held_layers)
    names = ["baseline-4", FAST.name, held.name]
    assert list(dict.fromkeys(planned.trial.name for planned in final.planned)) == names
    assert len(final.planned) == len(names) * fleet.settings.tune.repeats
    assert final.settings["bench"]["quality"]
    assert {planned.trial.measured_steps for planned in final.planned} == {SCALES[run.profile].measured_steps}
    assert fleet.compared == [final_folder]
    assert Trial.read(folder / BEST_FILE) == held
    ran = list(fleet.ran)
    search(fleet, run=run)
    assert fleet.ran == ran, "a search that has ended measures nothing again"


def test_a_search_that_was_stopped_before_its_second_run_plans_it_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner.write_plan(fleet.settings.results_folder, make_search(*SHORT))
    finish = fleet.resume
    with monkeypatch.context() as patch:
        patch.setattr(runner, "resume", lambda *_, **__: None)
        with pytest.raises(RetryableError):
            search(fleet, run=run)
    assert tune._second_run(fleet.settings, run.run_id) is None

    def stop_second(settings: Settings, run_id: str, *arguments: object, **options: object) -> None:
        if run_id != run.run_id:
            raise RetryableError("stopped")
        finish(settings, run_id, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "resume", stop_second)
        with pytest.raises(RetryableError):
            search(fleet, run=run)
    _, planned = second_run(fleet, run)
    _, folder = search(fleet, run=run)
    assert [path.parent for path in fleet.settings.results_folder.glob("*tuned*/run.json")] == [planned]
    assert (folder / BEST_FILE).exists()


def test_each_precision_of_products_is_measured_in_full(fleet: Fleet) -> None:
    int8 = dataclasses.replace(FAST, name="fast-int8-pad-4-none", matmul="int8")
    run, _ = search(fleet, *SHORT, int8)
    final, _ = second_run(fleet, run)
    assert {planned.trial.matmul for planned in final.planned} == {"bf16", "int8"}


def test_what_fails_is_not_chosen(fleet: Fleet) -> None:
    fleet.ends = {"fast-pad-4-none": ReasonCode.OUT_OF_MEMORY, "fast-pad-2-none": ReasonCode.UNKNOWN}
    _, folder = search(fleet, *SHORT)
    assert Trial.read(folder / BEST_FILE).name == STOCK.name


def test_without_a_success_there_is_no_answer(fleet: Fleet) -> None:
    fleet.ends = dict.fromkeys((trial.name for trial in SHORT), ReasonCode.OUT_OF_MEMORY)
    with pytest.raises(TaskFailed):
        search(fleet, *SHORT)


def test_a_configuration_whose_losses_could_not_be_compared_is_no_answer(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    check: dict[str, Any] = {"reason": "no room"}

    def compare(_settings: Settings, folder: Path, *_: object, **__: object) -> None:
        fields = {"label": "fast", "trial": FAST, "reference": reference_of(FAST, FAST), "run_id": "q"}
        checks = [LossCheck(planned_pairs=3, **fields, **check)]
        QualityRecord(max_increase_percent=0.15, steps=60, checks=checks).write(folder)

    monkeypatch.setattr(loss_pairs, "compare_run", compare)
    run = runner.write_plan(fleet.settings.results_folder, make_search(*SHORT))
    with pytest.raises(SomeTrialsFailed, match="no room"):
        search(fleet, run=run)
    folder = fleet.settings.results_folder / run.run_id
    assert not (folder / BEST_FILE).exists()
    check |= {"reason": None, "pairs": [LossPair(seed=seed, reference=2.0, loss=2.1 + seed / 100) for seed in range(3)]}
    search(fleet, run=run)
    assert Trial.read(folder / BEST_FILE).name == "baseline-4", "all faster ones have another loss"


def test_results_of_another_gpu_or_damaged_ones_are_refused(fleet: Fleet) -> None:
    run, folder = search(fleet, *SHORT)
    (path, *_) = sorted(folder.glob("trials/*/result.json"))
    planned = next(planned for planned in run.planned if planned.trial_id == path.parent.name)
    fingerprint = synthetic.fingerprint(gpu_name="NVIDIA H200")
    synthetic.rewrite(folder, planned, worker="worker-1", run_id=run.run_id, fingerprint=fingerprint)
    with pytest.raises(ConfirmationRequired, match=r"H200.*A10"):
        tune.measured_trials(run, folder)
    path.write_text("{")
    with pytest.raises(ConfirmationRequired, match=r"result\.json"):
        tune.measured_trials(run, folder)


def test_the_error_for_a_missing_search_names_the_newest(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="`inv tune`"):
        tune.find_search(fleet.settings, None)
    run = runner.write_plan(fleet.settings.results_folder, dataclasses.replace(make_search(*SHORT), fleet_kind="local"))
    other = dataclasses.replace(make_search(*SHORT), suite="quick", run_id="20261122-000000-quick", fleet_kind="local")
    runner.write_plan(fleet.settings.results_folder, other)
    with pytest.raises(UsageError, match=run.run_id):
        tune.find_search(fleet.settings, other.run_id)


@pytest.mark.parametrize(
    "change", [{"gpu": {"name": "NVIDIA H200"}}, {"gpu": None}, {"model": {"sha256": "x"}}, {"data": {"sha256": "x"}}]
)
def test_a_search_is_resumed_on_the_same_gpu_model_and_data_only(change: dict[str, Any]) -> None:
    tune.check_same_inputs(make_search(*SHORT), OBSERVED)
    with pytest.raises(ConfirmationRequired, match="`inv tune`"):
        tune.check_same_inputs(make_search(*SHORT), OBSERVED | change)


@pytest.mark.parametrize(
    ("limit", "gpu", "expected"),
    [
        (12.0, {"largest_peak_bytes": 21 * GIB}, 12 * GIB),
        (None, {"largest_peak_bytes": 21 * GIB}, 21 * GIB),
        (None, {"largest_peak_bytes": None}, None),
        (None, None, None),
    ],
)
def test_without_a_limit_of_the_user_the_worker_says_what_fits_its_gpu(
    limit: float | None, gpu: dict[str, int | None] | None, expected: int | None
) -> None:
    assert tune._limit_bytes(limit, gpu) == expected


def test_a_survey_that_cannot_be_read_is_an_error_of_the_worker() -> None:
    prediction = schema.to_json(predicted_candidates()[0].predicted)
    assert tune._predict([FAST], {"trials": [prediction]})[0].trial == FAST
    for damaged in ({}, {"trials": []}, {"trials": [prediction | {"peak_bytes": "many"}]}):
        with pytest.raises(RetryableError):
            tune._predict([FAST], damaged)
    assert len(tune._predict([FAST, FAST], {"trials": [None, prediction]})) == 1
    with pytest.raises(UsageError):
        tune._predict([FAST], {"trials": [None]})
