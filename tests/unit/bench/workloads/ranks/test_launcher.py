"""The ranks of one machine of several: messages to the first machine, and lines that a stop does not interrupt.

Not covered: ranks that still run when the first machine is lost (tests/faults/bench/test_distributed_ranks.py).
"""

import contextlib
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError, InputRejected
from bench.harness.termination import Stopped, StopSignals
from bench.records.status import ReasonCode
from bench.workloads.ranks import launcher
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.multi_node import LeaderGone, NodeList
from bench.workloads.ranks.process import check_gpus
from tests.support.faults import raising

NODES = NodeList(count=2, rank=1, address="127.0.0.1", port=21000, token="word")
GPU_FAULT = {"errors": [(1, ReasonCode.GPU_FAULT, "why")]}
STOPPED = Stopped(ReasonCode.WORKER_STOPPED, "why")


def said(name: str, failures: list[Any]) -> list[Any]:
    """Return failures without the times of errors."""
    return [(each["rank"], each["reason_code"], each["reason"]) for each in failures] if name == "errors" else failures


@pytest.fixture
def follow(monkeypatch, make_trial, tmp_path) -> Callable[..., tuple[Any, Any]]:
    """Return a function that follows a first machine which has ended; it returns the end and this one's last message.

    `code` is what the ranks end with, at once or once they are told to `stop`.
    """
    messages: list[Any] = []
    gone = raising(LeaderGone("the first machine has ended the trial"))
    link = SimpleNamespace(
        check=gone,
        send_changes=lambda *_: None,
        send_end=lambda failures: messages.append({name: said(name, each) for name, each in failures.items()}),
        address="127.0.0.1",
    )
    monkeypatch.setattr(launcher, "LeaderLink", lambda *_, **__: contextlib.nullcontext(link))
    monkeypatch.setattr(launcher, "choose_backend", lambda *_: "gloo")

    def run(
        check_inputs: Callable[[], Any] = dict, code: int | None = 0, failures: Any = None, stop: Stopped | None = None
    ) -> tuple[Any, Any]:
        ranks = SimpleNamespace(
            folder=tmp_path,
            poll=lambda: code if stop is None or (tmp_path / launcher.STOP_FILE).exists() else None,
            last_lines=lambda _: [],
            write_files=lambda _: None,
            local_failures=lambda: failures,
        )
        link.check = gone if stop is None else lambda: None
        monkeypatch.setattr(launcher, "Ranks", lambda *_, **__: contextlib.nullcontext(ranks))
        stops = SimpleNamespace(check=int if stop is None else raising(stop), deferred=contextlib.nullcontext)
        trial = make_trial(kind="distributed", world_size=2)
        try:
            end = RankLauncher(trial, stops, NODES, module="ranks", grace_sec=0.01).follow(check_inputs)
        except (Stopped, InputError) as error:
            end = type(error)
        (message,) = messages
        return end, message

    return run


@pytest.mark.parametrize(("code", "failures"), [(0, {}), (1, {"ranks": [(1, -9)]})])
def test_the_ranks_result_is_reported_although_the_first_machine_has_ended(follow, code, failures):
    assert follow(code=code, failures=failures) == (code, failures)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (STOPPED, {"stopped": [1]}),
        (Stopped(ReasonCode.GPU_FAULT, "why"), GPU_FAULT),
        (InputError("no data"), {"errors": [(1, ReasonCode.BAD_INPUT, "no data")]}),
        (InputRejected("other data"), {"errors": [(1, ReasonCode.INPUT_REJECTED, "other data")]}),
    ],
)
def test_a_machine_that_starts_no_ranks_says_why_and_is_not_lost(follow, error, message):
    assert follow(check_inputs=raising(error)) == (type(error), message)


@pytest.mark.parametrize(
    ("code", "stop", "message"),
    [
        (None, STOPPED, {"stopped": [1]}),
        (1, STOPPED, {"stopped": [1]}),
        (0, STOPPED, {}),
        (0, Stopped(ReasonCode.GPU_FAULT, "why"), GPU_FAULT),
    ],
)
def test_a_machine_reports_whether_its_rank_ended_its_step(follow, tmp_path, code, stop, message):
    assert follow(code=code, stop=stop) == (Stopped, message)
    is_ended = stop is STOPPED
    assert (tmp_path / launcher.STOP_FILE).exists() == is_ended, "a faulty GPU ends no step and writes no checkpoint"


@pytest.mark.usefixtures("restored_signals")
def test_a_stop_waits_until_the_current_line_is_processed(make_trial):
    trial, stops, processed, lines = make_trial(), StopSignals(), list[int](), iter(range(3))
    stops.install()

    def on_line(line: int) -> None:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0)  # Python runs the handler between two of its instructions
        processed.append(line)

    def dispatch_lines(on_line: Callable[[int], None]) -> None:
        for line in lines:
            on_line(line)

    ranks = SimpleNamespace(poll=lambda: None, dispatch_lines=dispatch_lines, check_progress=lambda: None)
    with pytest.raises(Stopped, match="SIGTERM"):
        RankLauncher(trial, stops, None, module="ranks").follow_ranks(ranks, None, on_line)
    assert processed == [0, 1, 2]


def test_ranks_with_gpus_of_two_kinds_are_refused():
    check_gpus([None, None])
    check_gpus(["NVIDIA A10", "NVIDIA A10"])
    with pytest.raises(InputError) as refused:
        check_gpus(["NVIDIA A10", "NVIDIA A10", "NVIDIA L4"])
    assert "rank 2: NVIDIA L4" in str(refused.value)
    assert "cluster.gpu" in str(refused.value.remedy)
