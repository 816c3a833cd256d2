"""Trainings that are stopped while a step takes longer than the grace period: preempted, not failed."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.data.inputs import InputError
from bench.harness.record import Request
from bench.harness.termination import Stopped, StopSignals, classify_error
from bench.records.status import ReasonCode, TrialStatus
from bench.records.training import DerivedSettings
from bench.workloads.finetune import finetune
from bench.workloads.finetune.training_set import FirstAttempt
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.watch import RankOutOfMemory, Ranks
from tests.support import tiny_training
from tests.support.faults import full_disk


@pytest.fixture
def measure(tmp_path, monkeypatch) -> Callable[..., list[int]]:
    """Return a function that measures a training without ranks; it returns the held layers of each start of them.

    `lead` is what following the ranks does, `stop` why they ended after 3 steps, `fits` are the derived configurations.
    """
    starts = list[int]()

    def run(
        lead: Callable[[], object],
        stops: StopSignals,
        fits: Sequence[DerivedSettings],
        stop: str = "",
    ) -> list[int]:
        data = SimpleNamespace(sha256="d", steps=lambda: 9)
        report = SimpleNamespace(files=[], examples=0, validation_examples=0, targets=0, tokens=0, left_out=0)
        remaining, log = iter(fits), SimpleNamespace(stop=stop, step=3 if stop else 0, write=None, on_line=None)
        monkeypatch.setattr(finetune, "fit_training", lambda *_: next(remaining))
        monkeypatch.setattr(finetune, "derive", lambda *load: (data, load[-1], report))
        monkeypatch.setattr(finetune, "TrainingLog", lambda *_, **__: log)
        ranks = SimpleNamespace(write_files=lambda files: starts.append(json.loads(files["trial.json"])["held_layers"]))
        monkeypatch.setattr(RankLauncher, "started", lambda _: contextlib.nullcontext(ranks))
        monkeypatch.setattr(RankLauncher, "lead", lambda *_, **__: lead())
        trial, request = tiny_training.plan(tmp_path, tmp_path), Request(out=tmp_path, checkpoints=tmp_path)
        timed = lambda _: contextlib.nullcontext()  # noqa: E731
        record = SimpleNamespace(trial=trial, request=request, log=lambda _: None, timed=timed)
        finetune.measure(record, [SimpleNamespace(sha256="m")], stops)
        return starts

    run.starts = starts
    return run


def test_a_training_at_its_limit_names_the_limiting_setting(measure):
    with pytest.raises(Stopped, match=r"^stopped by train\.max_hours after step 3$"):
        measure(lambda: None, StopSignals(), [DerivedSettings()], stop="max_hours")


@pytest.mark.parametrize("smaller", [DerivedSettings(held_layers=1), DerivedSettings()])
def test_a_training_without_memory_for_its_rehearsal_tries_a_smaller_configuration_once(tmp_path, measure, smaller):
    stops = StopSignals()

    def lead() -> None:
        if len(measure.starts) == 1:
            stops.close()
            raise RankOutOfMemory("rank 0: out of memory", None, None)

    with contextlib.nullcontext() if smaller.values else pytest.raises(RankOutOfMemory):
        measure(lead, stops, [DerivedSettings(held_layers=2), smaller])
    assert measure.starts == [2, 1][: 2 if smaller.values else 1]
    assert FirstAttempt.read(tmp_path).fitted.held_layers == measure.starts[-1], "a later attempt has the same"


def test_ranks_on_a_full_disk_are_lost_and_the_disk_is_named(tmp_path, monkeypatch):
    ranks = Ranks.__new__(Ranks)
    ranks.folder, ranks._processes, ranks._samples = tmp_path / "ranks", {0: SimpleNamespace(poll=lambda: 1)}, []
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    outcome = classify_error(ranks.failure())
    assert (outcome.status, outcome.reason_code) == (TrialStatus.LOST, ReasonCode.NOT_WRITTEN)
    assert str(tmp_path) in str(outcome.reason)


def test_a_checkpoint_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"^/proc: "):
        finetune._checkpoint_folder(Request(out=tmp_path, checkpoints=Path("/proc")))
