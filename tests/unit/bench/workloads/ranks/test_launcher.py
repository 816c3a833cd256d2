"""The ranks of one machine of several: messages to the first machine, and lines that a stop does not interrupt.

Not covered: ranks that still run when the first machine is lost (tests/faults/bench/test_distributed_nodes.py).
"""

import contextlib
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.harness.termination import Stopped, StopSignals
from bench.records import Trial
from bench.records.status import ReasonCode
from bench.workloads.ranks import launcher
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.multi_node import LeaderGone, NodeList
from bench.workloads.ranks.process import check_gpus
from tests.support.faults import raising


@pytest.fixture
def last_messages(monkeypatch) -> list[Any]:
    """Return the last messages of this machine to the first one, which has ended."""
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
    return messages


def said(name: str, failures: list[Any]) -> list[Any]:
    """Return failures without the times of errors."""
    return [(each["rank"], each["reason_code"], each["reason"]) for each in failures] if name == "errors" else failures


NODES = NodeList(count=2, rank=1, address="127.0.0.1", port=21000, token="word")
GPU_FAULT = {"errors": [(1, ReasonCode.GPU_FAULT, "why")]}


def make_launcher(trial: Trial, stops: Any, nodes: Any = None, grace_sec: float = 0.0) -> RankLauncher:
    return RankLauncher(trial, stops, nodes, module="ranks", grace_sec=grace_sec)


def run_local_ranks(trial: Trial, check_inputs: Callable[[], Any]) -> int:
    stops = SimpleNamespace(check=lambda: None, deferred=contextlib.nullcontext)
    return make_launcher(trial, stops, NODES).follow(check_inputs)


@pytest.mark.parametrize(("code", "message"), [(0, {}), (1, {"ranks": [(1, -9)]})])
def test_the_ranks_result_is_reported_although_the_first_machine_has_ended(
    monkeypatch, make_trial, tmp_path, last_messages, code, message
):
    ranks = SimpleNamespace(
        folder=tmp_path,
        poll=lambda: code,
        last_lines=lambda _: [],
        write_files=lambda _: None,
        local_failures=lambda: message,
    )
    monkeypatch.setattr(launcher, "Ranks", lambda *_, **__: contextlib.nullcontext(ranks))
    trial = make_trial(kind="distributed", world_size=2)
    assert (run_local_ranks(trial, dict), last_messages) == (code, [message])


@pytest.mark.parametrize(
    ("code", "message"),
    [(ReasonCode.WORKER_STOPPED, {"stopped": [1]}), (ReasonCode.GPU_FAULT, GPU_FAULT)],
)
def test_a_machine_that_is_stopped_while_it_reads_its_inputs_says_why_and_is_not_lost(
    make_trial, last_messages, code, message
):
    with pytest.raises(Stopped):
        run_local_ranks(make_trial(kind="distributed", world_size=2), raising(Stopped(code, "why")))
    assert last_messages == [message]


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (None, ReasonCode.WORKER_STOPPED, {"stopped": [1]}),
        (1, ReasonCode.WORKER_STOPPED, {"stopped": [1]}),
        (0, ReasonCode.WORKER_STOPPED, {}),
        (0, ReasonCode.GPU_FAULT, GPU_FAULT),
    ],
)
def test_a_machine_reports_whether_its_rank_ended_its_step(
    monkeypatch, make_trial, tmp_path, last_messages, code, reason, message
):
    stop_file = tmp_path / launcher.STOP_FILE
    ranks = SimpleNamespace(
        folder=tmp_path, poll=lambda: code if stop_file.exists() else None, last_lines=lambda _: [],
        write_files=lambda _: None,
    )  # fmt: skip
    monkeypatch.setattr(launcher, "Ranks", lambda *_, **__: contextlib.nullcontext(ranks))
    launcher.LeaderLink().enter_result.check = lambda: None
    stops = SimpleNamespace(check=raising(Stopped(reason, "why")), deferred=contextlib.nullcontext)
    with pytest.raises(Stopped):
        make_launcher(make_trial(kind="distributed", world_size=2), stops, NODES, grace_sec=0.01).follow(dict)
    assert last_messages == [message]
    is_ended = reason is ReasonCode.WORKER_STOPPED
    assert stop_file.exists() == is_ended, "a faulty GPU ends no step and writes no checkpoint"


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
        make_launcher(trial, stops).follow_ranks(ranks, None, on_line)
    assert processed == [0, 1, 2]


def test_ranks_with_gpus_of_two_kinds_are_refused():
    check_gpus([None, None])
    check_gpus(["NVIDIA A10", "NVIDIA A10"])
    with pytest.raises(InputError) as refused:
        check_gpus(["NVIDIA A10", "NVIDIA A10", "NVIDIA L4"])
    assert "rank 2: NVIDIA L4" in str(refused.value)
    assert "cluster.gpu" in str(refused.value.remedy)
