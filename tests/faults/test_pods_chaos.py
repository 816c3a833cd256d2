"""A ledger of planned trials over pods, and faults at random, seeded: streams, API server, kubelets, nodes, pods.

Real kubectl against the tests' own cluster. Whatever the dice say: at the end exactly one end per trial, every
SUCCEEDED backed by a verified file, no trial begun again after it had succeeded, nothing still running.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote.pod import PodHost
from tests.cluster.faults import ENDINGS
from tests.faults.podyard import LIMITS, PodYard, start

PODS = 3
SHARED_EVICTION = 0.03  # tolerationSeconds of 30 s become one second


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[PodYard]:
    yield from start(tmp_path, PODS, toleration_scale=SHARED_EVICTION)


class Dice:
    """Throws `count` faults, one after the other, or until it is told to stop, then mends all that can be mended."""

    def __init__(self, yard: PodYard, seed: int, count: int) -> None:
        self._left = count  # on a slow machine a run could be disturbed for ever
        self.yard, self.faults, self.chooser = yard, yard.cluster.faults, random.Random(seed)
        self.thrown: Counter[str] = Counter()
        self._enough = threading.Event()
        self._lost: set[str] = set()
        self._thread = threading.Thread(target=self._throw_on, daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Dice:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)
        self._mend()
        if self.failure is not None:
            raise self.failure

    def _throw_on(self) -> None:
        throws: list[Callable[[], None]] = [
            *[self._stream] * 5,
            *[self._streams_of_a_node] * 2,
            *[self._process] * 3,
            self._server,
            self._black_hole,
            self._kubelet,
            self._delete,
            self._evict,
            self._out_of_memory,
            self._node,
            self._silent_node,
        ]
        try:
            while self._left and not self._enough.wait(self.chooser.uniform(0.1, 0.7)):
                self._left -= 1
                throw = self.chooser.choice(throws)
                self.thrown[throw.__name__] += 1
                throw()
            self._mend()
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            self.failure = error

    def _mend(self) -> None:
        self.faults.clear()
        self.faults.server_back()
        self.faults.speak()
        for node in sorted(self._lost):
            self.faults.find_node(node)
        self._lost.clear()

    def _pod(self) -> dict[str, object] | None:
        live = sorted(self.yard.live(), key=lambda pod: str(pod["name"]))
        return self.chooser.choice(live) if live else None

    def _stream(self) -> None:
        after = self.chooser.choice([None, 0, 1, 33, 40, self.chooser.randrange(34, 4000)])
        how, nth = self.chooser.choice(ENDINGS), self.chooser.randrange(1, 4)
        where = {} if after is None else {"after_stdout_bytes": after}
        self.faults.exec(how, nth=nth, times=self.chooser.randrange(1, 3), **where)

    def _streams_of_a_node(self) -> None:
        self.faults.end_streams(f"node-{self.chooser.randrange(PODS)}", self.chooser.choice(ENDINGS))

    def _process(self) -> None:
        pod = self._pod()
        if pod is None:
            return
        with contextlib.suppress(RuntimeError):  # the pod went away in between
            running = self.yard.cluster.processes(str(pod["name"]))
            ours = sorted(pid for pid, argv in running.items() if "fake_bench" in str(argv) or " start " in str(argv))
            if ours:
                self.faults.kill(str(pod["name"]), self.chooser.choice(ours))

    def _server(self) -> None:
        self.faults.server_gone(seconds=self.chooser.uniform(0.2, 1.5))

    def _black_hole(self) -> None:
        self.faults.silence()
        self._enough.wait(self.chooser.uniform(0.2, 1.5))
        self.faults.speak()

    def _kubelet(self) -> None:
        self.faults.restart_kubelet(f"node-{self.chooser.randrange(PODS)}", seconds=0.5)

    def _delete(self) -> None:
        self._on_pod(lambda name: self.faults.delete_pod(name, grace=self.chooser.choice([0, 1])))

    def _evict(self) -> None:
        self._on_pod(self.faults.evict)

    def _out_of_memory(self) -> None:
        self._on_pod(self.faults.oom_kill)

    def _on_pod(self, act: Callable[[str], None]) -> None:
        pod = self._pod()
        if pod is not None:
            with contextlib.suppress(RuntimeError):
                act(str(pod["name"]))

    def _node(self) -> None:
        self._lose(lambda node: self.faults.lose_node(node, processes_die=self.chooser.random() < 0.5))

    def _silent_node(self) -> None:
        self._lose(self.faults.silence_node)

    def _lose(self, act: Callable[[str], None]) -> None:
        node = f"node-{self.chooser.randrange(PODS)}"
        self._lost.add(node)
        act(node)
        self._enough.wait(self.chooser.uniform(0.3, 4.0))
        self.faults.find_node(node)
        self._lost.discard(node)


def hasty(hosts: list[PodHost]) -> list[PodHost]:
    """The same workers, giving a silent stream up after 2 s instead of 15."""
    return [replace(host, silence_sec=2.0) for host in hosts]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "rounds"), [(21, 2), pytest.param(23, 4, marks=pytest.mark.slow)])
def test_whatever_befalls_the_pods_every_trial_has_one_true_end(yard: PodYard, seed: int, rounds: int) -> None:
    names = [f"{kind} {number}" for number in range(rounds) for kind in ("steps", "fine", "killed-once", "oom-result")]
    yard.plan(*names, workers=PODS)
    fleet = yard.pod_fleet(hosts=hasty(yard.pod_hosts()), limits=replace(LIMITS, give_up_after_sec=400.0))
    with Dice(yard, seed, count=12 * rounds) as dice:
        fleet.run()
    # Which faults fall depends on how long the run takes, not on the seed alone.
    assert len(dice.thrown) >= 3, "the dice were too kind to show anything"
    for trial_id, end in yard.ends().items():
        wanted = "OUT_OF_MEMORY" if trial_id.startswith("oom") else "SUCCEEDED"
        assert end == wanted, (trial_id, yard.reasons()[trial_id], dice.thrown)
    assert yard.started_after_success() == []
