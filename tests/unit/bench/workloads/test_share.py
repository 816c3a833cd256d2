"""The first machine's watch and a further one's share of the ranks: what is told, and what a stop does not interrupt.

Not covered: ranks that still run when the first machine goes; tests/faults/bench/test_distributed_nodes.py has them.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from bench.harness.termination import Stopped, Stops
from bench.records import Trial
from bench.records.result import TrialStatus
from bench.workloads.distributed import distributed
from bench.workloads.distributed.multi_node import LeaderGone
from tests.support.faults import raising


@pytest.fixture
def ended(monkeypatch) -> list[Any]:
    """The last messages of this machine to the first one, which has left."""
    told: list[Any] = []
    gone = raising(LeaderGone("the first machine has ended the trial"))
    link = SimpleNamespace(check=gone, mirror=lambda *_: None, end=told.append)
    monkeypatch.setattr(distributed, "Link", lambda *_: contextlib.nullcontext(link))
    monkeypatch.setattr(distributed, "choose_backend", lambda *_: "gloo")
    monkeypatch.setattr(distributed, "rendezvous", lambda: None)
    return told


def run_share(trial: Trial, prepare: Callable[[], Mapping[str, str]]) -> int:
    machines = SimpleNamespace(ranks_here=lambda _: range(1, 2))
    return distributed.run_share(
        trial, machines, SimpleNamespace(check=lambda: None), SimpleNamespace(silence_sec=1.0), prepare
    )


@pytest.mark.parametrize(("code", "told"), [(0, {}), (1, {"ranks": [], "rank": 1})])
def test_how_ranks_ended_is_told_although_the_first_machine_has_left(
    monkeypatch, make_trial, tmp_path, ended, code, told
):
    ranks = SimpleNamespace(folder=tmp_path, poll=lambda: code, log=lambda _: [], failures=lambda: {"rank": 1})
    monkeypatch.setattr(distributed, "Torchrun", lambda *_, **__: contextlib.nullcontext(ranks))
    assert (run_share(make_trial(kind="distributed", world_size=2), dict), ended) == (code, [told])


def test_a_machine_that_is_drained_while_it_reads_its_inputs_was_stopped_and_is_not_gone(make_trial, ended):
    with pytest.raises(Stopped):
        run_share(
            make_trial(kind="distributed", world_size=2), raising(Stopped(TrialStatus.PREEMPTED, "stopped by SIGTERM"))
        )
    assert ended == [{"stopped": [1]}]


@pytest.mark.usefixtures("signals_given_back")
def test_a_stop_waits_until_the_line_that_is_being_taken_is_taken():
    stops, taken, lines = Stops(), list[int](), iter(range(3))
    stops.install()

    def take(line: int) -> None:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0)  # Python runs the handler between two instructions of its own
        taken.append(line)

    def hand_on(take: Callable[[int], None]) -> None:
        for line in lines:
            take(line)

    ranks = SimpleNamespace(poll=lambda: None, hand_on=hand_on, look=lambda: None)
    with pytest.raises(Stopped, match="SIGTERM"):
        distributed.watch(ranks, None, stops, take)
    assert taken == [0, 1, 2]
