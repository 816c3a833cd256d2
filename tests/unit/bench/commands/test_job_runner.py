"""Runner of a training's attempts in a pod: restarts and the training's end. No attempt runs here."""

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.commands import cli, job_runner
from bench.commands.job_runner import JobRunner, attempt_numbers, read_spec
from bench.data.inputs import InputError
from bench.records import Trial, schema
from bench.records.paths import COLLECTED_FILE, JOB_SPEC_VARIABLE, NODE_ADDRESS
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, TrainingJobEnd, TrainingJobSpec
from bench.records.status import ExitCode, ReasonCode, TrialStatus

# For each attempt: exit code, and the result's status or its cause (None: no result) and reason.
Script = list[tuple[int, TrialStatus | ReasonCode | None, str | None]]


def spec_of(trial: Trial, **values: Any) -> TrainingJobSpec:
    """Make the first turn of a training with two restarts; `values` replace some of its fields."""
    planned = PlannedTrial(trial_id="train", trial=trial, worker="worker-0")
    first = TrainingJobSpec(run_id="r1", planned=planned, shared="/s", turn=1, after=0, max_restarts=2)
    return dataclasses.replace(first, **values)


@pytest.fixture(autouse=True)
def _own_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runner.signal, "signal", lambda *_: None)


@pytest.fixture
def run_script(
    tmp_path: Path, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, TrainingJobEnd | None]]:
    """Function that runs the first pod of a job spec with scripted attempts; returns (exit code, the end it wrote)."""
    monkeypatch.setattr(job_runner, "RETRY_DELAY_SEC", 0.0)
    message = tmp_path / "termination-log"
    message.touch()
    monkeypatch.setattr(job_runner, "TERMINATION_LOG", message)

    def run(script: Script, **limits: int) -> tuple[int, TrainingJobEnd | None]:
        trial = make_trial()
        spec = spec_of(trial, shared=str(tmp_path), **limits)
        pod, remaining = JobRunner(spec, 0, "train"), list(script)

        def attempt(number: int) -> tuple[int, str]:
            folder = tmp_path / "r1" / f"train.{number}"
            folder.mkdir()
            code, end, reason = remaining.pop(0)
            if end is not None:
                status, cause = (end.status, end) if isinstance(end, ReasonCode) else (end, None)
                TrialResult(
                    trial_id="train", trial=trial, status=status, reason=reason, reason_code=cause,
                    worker="worker-0", run_id="r1", attempt=number,
                ).write(folder)  # fmt: skip
            if code == 143:
                pod._is_stopped = True
            return code, reason or ""

        monkeypatch.setattr(pod, "_run_attempt", attempt)
        code = pod.run()
        assert remaining == []
        return code, TrainingJobEnd.read_or_none(tmp_path / "r1", spec.turn)

    return run


DIED = (1, TrialStatus.LOST, "rank 0 was killed by SIGKILL")
DRAINED = (1, ReasonCode.WORKER_STOPPED, "one of its workers was told to stop")
ABSENT = (1, ReasonCode.START_TIMED_OUT, "rank 1 did not start within 180 s")
USED_UP = ReasonCode.RESTARTS_USED_UP


@pytest.mark.parametrize(
    ("script", "end", "cause"),
    [
        ([DIED, (-9, None, None), (0, TrialStatus.SUCCEEDED, None)], TrialStatus.SUCCEEDED, None),
        ([(3, None, None)] * 3, TrialStatus.LOST, USED_UP),
        ([DIED, DRAINED, ABSENT, ABSENT, DRAINED, DIED, DIED], TrialStatus.LOST, USED_UP),
    ],
)
def test_a_lost_attempt_is_repeated_while_restarts_are_left_and_one_from_outside_is_not_counted(
    run_script, tmp_path: Path, script: Script, end: TrialStatus, cause: ReasonCode | None
) -> None:
    code, ended = run_script(script)
    assert (code, ended.end, ended.reason_code, ended.attempt) == (0, end, cause, len(script))
    assert cause is None or "train.max_restarts: 2 " in ended.reason
    assert attempt_numbers(tmp_path / "r1", "train") == [*range(1, len(script) + 1)]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ((1, ReasonCode.ERROR, "loss is not finite"), (TrialStatus.FAILED, ReasonCode.ERROR)),
        ((2, None, "train.data: no such file"), (TrialStatus.FAILED, ReasonCode.BAD_INPUT)),
        ((4, None, "model: its sha256 differs"), (TrialStatus.FAILED, ReasonCode.INPUT_REJECTED)),
        ((143, ReasonCode.MAX_HOURS, "stopped by train.max_hours"), (TrialStatus.PREEMPTED, ReasonCode.MAX_HOURS)),
        ((74, None, "/results: No space left"), (TrialStatus.LOST, ReasonCode.NOT_WRITTEN)),
        ((1, ReasonCode.NOT_WRITTEN, "/results: No space left"), (TrialStatus.LOST, ReasonCode.NOT_WRITTEN)),
        ((1, ReasonCode.OUT_OF_MEMORY, "rank 1"), (TrialStatus.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY)),
        ((1, ReasonCode.GPU_FAULT, "GPU 0: XID 79 (node node-1)"), (TrialStatus.LOST, ReasonCode.GPU_FAULT)),
    ],
)
def test_an_end_that_a_restart_cannot_change_is_final_and_no_pod_is_started_again(
    run_script, tmp_path: Path, last, expected
) -> None:
    code, end = run_script([last])
    assert code == 0, "Kubernetes would start another pod"
    assert (end.end, end.reason_code) == expected
    assert end.reason == last[2]
    assert (tmp_path / "termination-log").read_text() == f"{expected[0].value}: {last[2]}"
    assert run_script([]) == (0, end), "a pod that starts nevertheless runs no attempt"


def test_a_number_that_another_copy_of_the_first_pod_has_taken_is_left_to_it(
    run_script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r1" / "train.1").mkdir(parents=True)
    listings = [[], *[[1]] * 9]  # a network file system may list a folder late
    monkeypatch.setattr(job_runner, "attempt_numbers", lambda *_: listings.pop(0))
    assert run_script([(0, TrialStatus.SUCCEEDED, None)])[1].attempt == 2


def test_a_failure_of_the_volume_may_pass_in_another_pod(
    make_trial: Callable[..., Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(make_trial(), shared=str(tmp_path))
    monkeypatch.setenv(JOB_SPEC_VARIABLE, json.dumps(schema.to_json(spec)))
    codes = (ExitCode.RETRYABLE, ExitCode.FAILED, ExitCode.NOT_WRITTEN)
    for number, code in zip((errno.ESTALE, errno.EACCES, errno.ENOSPC), codes, strict=True):
        failure = OSError(number, os.strerror(number), "/workspace/results/r1")
        monkeypatch.setattr(JobRunner, "_run_attempts", lambda *_, failure=failure: (_ for _ in ()).throw(failure))
        assert cli.main(["train", "--rank", "0", "--service", "train"]) == code


def test_a_pod_that_is_stopped_leaves_the_rest_to_its_replacement_and_another_turn_begins_with_all_restarts(
    run_script,
) -> None:
    assert run_script([(143, TrialStatus.PREEMPTED, "stopped by SIGTERM")]) == (143, None)
    _, first = run_script([DIED], max_restarts=0)
    assert first.attempt == 2
    assert run_script([DIED, (0, TrialStatus.SUCCEEDED, None)], max_restarts=1, turn=2, after=2)[0] == 0
    assert run_script([], turn=2) == (0, TrainingJobEnd(attempt=4, end=TrialStatus.SUCCEEDED, reason=None)), (
        "a replacement after the end"
    )


def test_the_first_pod_listens_at_its_own_address_and_not_at_a_name_of_two_pods(
    make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost node's pod keeps its name in DNS until the node returns."""
    spec = spec_of(make_trial(kind="distributed", world_size=2), port=21_000, token="t")
    assert JobRunner(dataclasses.replace(spec, port=None), 0, "")._rendezvous_variables() == {}, "all ranks on one host"
    for rank, address in ((0, "train-0"), (1, "train-0.train")):
        monkeypatch.setattr(job_runner.socket, "gethostname", lambda rank=rank: f"train-{rank}")
        assert JobRunner(spec, rank, "train")._rendezvous_variables()[NODE_ADDRESS] == address


def test_a_pod_whose_disk_dies_with_it_waits_until_it_was_collected(
    tmp_path: Path, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(make_trial(), shared=str(tmp_path), keeps_pod=True)
    pod, waits = JobRunner(spec, 0, ""), list[float]()
    pod.folder.mkdir()
    TrainingJobEnd(attempt=1, end=TrialStatus.SUCCEEDED, reason=None).write(pod.folder, 1)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        (pod.folder / COLLECTED_FILE).touch()

    monkeypatch.setattr(job_runner.time, "sleep", sleep)
    assert (pod.run(), len(waits)) == (0, 1)


def test_an_order_comes_back_from_the_environment_as_it_was(make_trial: Callable[..., Trial]) -> None:
    spec = spec_of(make_trial(), port=21_000, token="t")
    assert read_spec({JOB_SPEC_VARIABLE: json.dumps(schema.to_json(spec))}) == spec
    for text in ("", "{", "[]", '{"run_id": 1}'):
        with pytest.raises(InputError, match=JOB_SPEC_VARIABLE):
            read_spec({JOB_SPEC_VARIABLE: text})
