"""Trainings that are stopped while a step takes longer than the grace period: preempted, not failed."""

import contextlib
import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.harness.record import Clock, Record, Request
from bench.harness.termination import Stopped, StopSignals, classify_error
from bench.records.paths import PROGRESS_FILE
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.training import DerivedSettings
from bench.workloads.finetune import finetune
from bench.workloads.finetune.training_set import FirstAttempt
from bench.workloads.ranks import launcher
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.multi_node import NodeList
from bench.workloads.ranks.watch import RankKilled, RankLimits, RankOutOfMemory, Ranks, RankSample
from tests.support import tiny_training
from tests.support.faults import full_disk


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (None, ReasonCode.WORKER_STOPPED, {"stopped": [1]}),
        (1, ReasonCode.WORKER_STOPPED, {"stopped": [1]}),
        (0, ReasonCode.WORKER_STOPPED, {}),
        (0, ReasonCode.GPU_FAULT, (1, ReasonCode.GPU_FAULT, "why")),
    ],
)
def test_a_machine_reports_whether_its_rank_ended_its_step(tmp_path, monkeypatch, code, reason, message):
    messages: list[Any] = []
    link = SimpleNamespace(
        check=lambda: None,
        send_changes=lambda *_: None,
        send_end=messages.append,
        report_error=lambda *error: messages.append(error),
        address="127.0.0.1",
    )
    asked = iter([False, True])
    ranks = SimpleNamespace(
        folder=tmp_path, poll=lambda: code if (tmp_path / "stop").exists() else None, last_lines=lambda _: [],
        write_files=lambda _: None,
    )  # fmt: skip
    monkeypatch.setattr(launcher, "LeaderLink", lambda *_: contextlib.nullcontext(link))
    monkeypatch.setattr(launcher, "Ranks", lambda *_, **__: contextlib.nullcontext(ranks))
    monkeypatch.setattr(finetune, "check_inputs", lambda _: (SimpleNamespace(sha256="m"), None, None))
    monkeypatch.setattr(finetune, "derive", lambda *_: (SimpleNamespace(sha256="d"), DerivedSettings(), False))
    monkeypatch.setattr(finetune, "GRACE_SEC", 0.0)

    def check() -> None:
        if next(asked):
            raise Stopped(reason, "why")

    request = Request(out=tmp_path, checkpoints=tmp_path)
    nodes = NodeList(count=2, rank=1, address="127.0.0.1", port=21000, token="word")
    trial = tiny_training.plan(tmp_path, tmp_path, world_size=2)
    with pytest.raises(Stopped):
        finetune.follow(request, trial, nodes, SimpleNamespace(check=check, deferred=contextlib.nullcontext))
    assert messages == [message]
    is_ended = reason is ReasonCode.WORKER_STOPPED
    assert (tmp_path / "stop").exists() == is_ended, "a faulty GPU ends no step and writes no checkpoint"


REPORT = SimpleNamespace(files=[], examples=0, validation_examples=0, targets=0, tokens=0, left_out=0)


def test_a_training_at_its_limit_names_the_limiting_setting(tmp_path, monkeypatch):
    trial = tiny_training.plan(tmp_path, tmp_path, training={"max_hours": 1.0})
    data = SimpleNamespace(sha256="d", steps=lambda: 9)
    monkeypatch.setattr(finetune, "derive", lambda *_: (data, DerivedSettings(), REPORT))
    monkeypatch.setattr(
        finetune, "TrainingLog", lambda *_, **__: SimpleNamespace(stop="max_hours", step=3, write=None, on_line=None)
    )
    monkeypatch.setattr(RankLauncher, "started", lambda _: contextlib.nullcontext(SimpleNamespace(write_files=print)))
    monkeypatch.setattr(RankLauncher, "lead", lambda *_, **__: None)
    request = Request(out=tmp_path, checkpoints=tmp_path)
    record = SimpleNamespace(
        trial=trial, request=request, log=lambda _: None, timed=lambda _: contextlib.nullcontext(), on_end=None
    )
    with pytest.raises(Stopped, match=r"^stopped by train\.max_hours after step 3$"):
        finetune.measure(record, [SimpleNamespace(sha256="m")], StopSignals())


@pytest.mark.parametrize("smaller", [DerivedSettings(held_layers=1), DerivedSettings()])
def test_a_training_without_memory_for_its_rehearsal_tries_a_smaller_configuration_once(tmp_path, monkeypatch, smaller):
    trial = tiny_training.plan(tmp_path, tmp_path)
    data = SimpleNamespace(sha256="d", steps=lambda: 9)
    led, fits = [], iter([DerivedSettings(held_layers=2), smaller])
    monkeypatch.setattr(finetune, "fit_training", lambda *_: next(fits))
    monkeypatch.setattr(finetune, "derive", lambda *load: (data, load[-1], REPORT))
    log = SimpleNamespace(stop="", step=0, write=None, on_line=None)
    monkeypatch.setattr(finetune, "TrainingLog", lambda *_, **__: log)

    def write_files(files: dict[str, str]) -> None:
        led.append(json.loads(files["trial.json"])["held_layers"])

    def lead(*_: object, **__: object) -> None:
        if len(led) == 1:
            stops.close()
            raise RankOutOfMemory("rank 0: out of memory", None, None)

    ranks = SimpleNamespace(write_files=write_files)
    monkeypatch.setattr(RankLauncher, "started", lambda _: contextlib.nullcontext(ranks))
    monkeypatch.setattr(RankLauncher, "lead", lead)
    request = Request(out=tmp_path, checkpoints=tmp_path)
    record = SimpleNamespace(trial=trial, request=request, log=lambda _: None, timed=lambda _: contextlib.nullcontext())
    stops = StopSignals()
    expected = contextlib.nullcontext() if smaller.values else pytest.raises(RankOutOfMemory)
    with expected:
        finetune.measure(record, [SimpleNamespace(sha256="m")], stops)
    assert led == [2, 1][: 2 if smaller.values else 1]
    assert FirstAttempt.read(tmp_path).fitted.held_layers == led[-1], "a later attempt has the same"


def test_ranks_that_are_killed_count_as_killed_and_not_as_failed(tmp_path):
    ranks = Ranks.__new__(Ranks)
    ranks.folder = tmp_path
    ranks._processes = dict.fromkeys(range(2), SimpleNamespace(poll=lambda: -signal.SIGKILL))
    position = {"phase": "train", "step": 7}
    ranks._samples = [RankSample(heartbeat=position, last_heartbeat=0.0, last_progress=0.0) for _ in range(2)]
    assert isinstance(ranks.failure(), RankKilled)
    assert re.fullmatch("rank 0 .* SIGKILL in train step 7", str(ranks.failure()))
    assert ranks.local_failures() == {"ranks": [(0, -signal.SIGKILL), (1, -signal.SIGKILL)]}


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


def test_the_first_machine_reports_a_stopped_rank_as_preempted(tmp_path, monkeypatch):
    reason = "rank 1 had no time to end its step"
    ranks = SimpleNamespace(
        folder=tmp_path, poll=lambda: 1, check_progress=lambda: None, last_lines=lambda _: [],
        dispatch_lines=lambda _: None, failure=lambda: Stopped(ReasonCode.WORKER_STOPPED, reason),
    )  # fmt: skip
    record = SimpleNamespace(log=lambda _: None, trial=SimpleNamespace(world_size=2))
    monkeypatch.setattr(finetune, "GRACE_SEC", 0.0)
    limits = RankLimits(silence_sec=1.0, step_sec=1.0)
    stoppable = RankLauncher(
        record.trial, StopSignals(), None, module="ranks", limits=limits, stop_after_step=finetune.stop_after_step
    )
    with pytest.raises(Stopped) as stopped:
        stoppable.lead(ranks, record, lambda _: None)
    assert stopped.value.outcome == Outcome.of(ReasonCode.WORKER_STOPPED, reason)


def test_a_training_shows_no_planned_steps_while_its_data_is_read(tmp_path):
    record = Record(Request(out=tmp_path), tiny_training.plan(tmp_path, tmp_path), Clock())
    with record.timed("data"):
        progress = json.loads((tmp_path / PROGRESS_FILE).read_text())
    assert (progress["phase"], progress["step"], progress["steps"]) == ("data", 0, 0)
