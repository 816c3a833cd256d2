"""Plans of the trainings whose held-out losses are compared, and the pairs that their results make."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from invoke.context import Context

from bench.records import Trial
from bench.records.paths import LEDGER_FILE, TRIALS_FOLDER
from bench.records.quality import LossPair, QualityRecord, loss_fields, reference_of
from bench.records.result import Measurement, TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.local import LocalHost
from reports.summary.loss_verdicts import verdict_of
from tasks.errors import ConfirmationRequired, RetryableError
from tasks.fleet import loss_pairs, plan, runner
from tasks.settings.layers import Settings, load
from tests.support.reports import synthetic

LOSSES = {"int8": 2.02, "fast": 2.0, "reference": 2.0}
OUTLIER = 53  # seed whose training takes another course


@pytest.fixture
def settings(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(plan, "git_state", lambda _: {})
    train = "{rows_per_step: 4, warmup_share: 0.03, validation_fraction: 0.02, max_seq_len: 2048}"
    text = f"quality: {{pairs: 3, steps: 5}}\ntrain: {train}\n"
    settings = load(context(text=text))
    settings.results_folder.mkdir(parents=True, exist_ok=True)
    return settings


def comparison(settings: Settings, **fields: object) -> loss_pairs.Comparison:
    fast = {"model": settings.model.path, "data": settings.data.path, "recipe": "fast", "optimizer": "adamw_torch"}
    trial = synthetic.trial("fast", **fast | fields)
    return loss_pairs.Comparison(label="fast", trial=trial, reference=reference_of(trial, trial))


def test_both_trainings_of_a_pair_take_the_same_rows(settings: Settings) -> None:
    compared = comparison(settings, max_seq_len=64, micro_batch_size=8, matmul="int8", held_layers=3)
    arm = loss_pairs.training_arm(settings, compared, 7, 3)
    reference = loss_pairs.reference_arm(arm, compared.reference)
    differing = {
        field.name for field in dataclasses.fields(Trial) if getattr(arm, field.name) != getattr(reference, field.name)
    }
    assert differing <= {"name", "gradient_checkpointing", "held_layers", *loss_fields(arm)}
    assert (arm.kind, arm.seed, arm.held_out_parts) == ("quality", 7, 3)
    assert (arm.max_seq_len, arm.micro_batch_size) == (2048, 2), "profile tiny measures shorter rows than the data's"
    assert arm.training is not None
    assert arm.training.max_steps == 5
    assert arm.training.data.validation_share == loss_pairs.HELD_OUT_SHARE
    assert (reference.recipe, reference.matmul, reference.optimizer) == ("reference", "bf16", arm.optimizer)
    assert Trial.from_json(arm.to_json()) == arm


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer trainings by LOSSES, by recipe or matmul; returns the ids of the trials that ran."""
    ran: list[str] = []

    def act(fleet_plan: plan.FleetPlan) -> None:
        ledger = Ledger(fleet_plan.folder / LEDGER_FILE)
        for planned in fleet_plan.run.planned:
            if ledger.is_open(planned.trial_id):
                ran.append(planned.trial_id)
                end(fleet_plan.folder, fleet_plan.run.run_id, planned, ledger)

    monkeypatch.setattr(runner, "act", act)
    return ran


def end(folder: Path, run_id: str, planned: PlannedTrial, ledger: Ledger) -> None:
    trial = planned.trial
    loss = LOSSES[trial.matmul if trial.matmul != "bf16" else trial.recipe]
    if trial.seed == OUTLIER and trial.recipe == "fast":
        loss *= 1.0018
    result = TrialResult(
        trial_id=planned.trial_id,
        trial=trial,
        status=TrialStatus.SUCCEEDED,
        reason=None,
        run_id=run_id,
        measurements=[Measurement(name=loss_pairs.LOSS, value=loss + trial.seed / 1e6)],
    )
    (folder / TRIALS_FOLDER / planned.trial_id).mkdir(parents=True)
    result.write(folder / TRIALS_FOLDER / planned.trial_id)
    ledger.record_end(planned.trial_id, Outcome(TrialStatus.SUCCEEDED))


def compare(settings: Settings, *compared: loss_pairs.Comparison) -> QualityRecord:
    """Compare the losses of a run that would recommend these configurations one after the other."""
    folder = settings.results_folder / "run"
    folder.mkdir(exist_ok=True)

    def next_comparison(_: Path, record: QualityRecord | None) -> loss_pairs.Comparison | None:
        return next((each for each in compared if verdict_of(record, each.trial) == "unknown"), None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_pairs, "next_comparison", next_comparison)
        loss_pairs.compare_run(settings, folder, [LocalHost(name="worker-0", workdir="/w")])
    assert not (settings.results_folder / "latest").exists(), "the newest run is the benchmark, not its comparisons"
    record = loss_pairs.read_record(folder)
    assert record is not None
    return record


def test_a_second_comparison_takes_the_losses_that_the_reference_has(settings: Settings, answered: list[str]) -> None:
    fast, int8 = comparison(settings), comparison(settings, matmul="int8")
    record = compare(settings, int8, fast)
    assert [trial_id.rpartition("-")[0] for trial_id in answered] == ["reference"] * 3 + ["fast"] * 6
    assert [verdict_of(record, each.trial) for each in (int8, fast)] == ["worse", "same"]
    assert record.checks[1].pairs[0] == LossPair(seed=42, reference=2.000042, loss=2.000042)


def test_trainings_that_failed_withhold_the_configuration(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fleet_plan: plan.FleetPlan) -> None:
        ledger = Ledger(fleet_plan.folder / LEDGER_FILE)
        for trial_id in ledger.open_trials():
            ledger.record_end(trial_id, Outcome.of(ReasonCode.OUT_OF_MEMORY, "no room"))

    monkeypatch.setattr(runner, "act", fail)
    compared = comparison(settings)
    record = compare(settings, compared)
    assert verdict_of(record, compared.trial) == "undecided"
    assert "no room" in (record.checks[0].reason or "")
    again = compare(settings, compared)
    assert again.checks[0].run_ids != record.checks[0].run_ids, "a resumed command compares what failed again"


def test_a_damaged_record_is_not_compared_again(settings: Settings) -> None:
    folder = settings.results_folder / "run"
    folder.mkdir()
    (folder / "quality.json").write_text("{")
    with pytest.raises(ConfirmationRequired):
        loss_pairs.read_record(folder)


def test_an_undecided_comparison_goes_on_with_more_pairs(
    settings: Settings, answered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = dataclasses.replace(settings.bench, seed=OUTLIER - 1)

    def with_pairs(pairs: int) -> Settings:
        return dataclasses.replace(settings, bench=bench, quality=dataclasses.replace(settings.quality, pairs=pairs))

    compared = comparison(settings)
    record = compare(with_pairs(3), compared)
    assert verdict_of(record, compared.trial) == "undecided"
    assert "set quality.pairs to" in capsys.readouterr().out
    most = dataclasses.replace(record.checks[0], planned_pairs=100)
    assert "quality.pairs" not in loss_pairs._outcome(record, most), "the setting allows no more"
    assert compare(with_pairs(3), compared) == record
    assert len(answered) == 6
    finish, stopped = runner.act, list[str]()
    monkeypatch.setattr(runner, "act", lambda fleet_plan: stopped.append(fleet_plan.run.run_id))
    with pytest.raises(RetryableError):
        compare(with_pairs(16), compared)
    assert verdict_of(loss_pairs.read_record(settings.results_folder / "run"), compared.trial) == "unknown"
    monkeypatch.setattr(runner, "act", finish)
    record = compare(with_pairs(16), compared)
    (check,) = record.checks
    assert (check.planned_pairs, check.run_ids[1:]) == (16, stopped)
    assert [pair.seed for pair in check.pairs] == list(range(OUTLIER - 1, OUTLIER + 15))
    assert len(answered) == len(set(answered)) == 32
    assert verdict_of(record, compared.trial) == "same"
    assert compare(with_pairs(100), compared) == record
