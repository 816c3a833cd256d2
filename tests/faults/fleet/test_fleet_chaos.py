"""Random faults, seeded: streams cut and garbled, hosts out of reach for a while, trials and supervisors killed.

Whatever the dice say, every trial has one end, what SUCCEEDED is backed by a verified result, and nothing runs on.
More seeds by hand: CHAOS_SEEDS=100-139 pytest tests/faults/fleet/test_fleet_chaos.py
"""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote.hosts.command import Command
from remote.hosts.host import HostUnreachable
from tests.support.hosts.local_fleet import QUICK, CuttableHost, LocalFleet, processes_under
from tests.support.thorough import seeds_by_hand


class Dice:
    """Decides, per command and piece on one host's wire, what goes wrong. Counts what did."""

    def __init__(self, seed: int, workdir: str, *, begins: bool) -> None:
        """With `begins` the first command fails for certain: a short run makes few throws."""
        self._begins = begins
        self._chooser, self._lock = random.Random(seed), threading.Lock()
        self._workdir = Path(workdir)
        self._out_of_reach = 0
        self.thrown: list[str] = []

    def before(self, _: Command) -> None:
        with self._lock:
            if self._out_of_reach:
                self._out_of_reach -= 1
                raise HostUnreachable("out of reach for a while")
            if self._chooser.random() < 0.06 or (self._begins and not self.thrown):
                self.thrown.append("unreachable")
                self._out_of_reach = self._chooser.randrange(1, 12)
                raise HostUnreachable("out of reach for a while")

    def cuts(self) -> Iterator[int | None]:
        while True:
            with self._lock:
                cut = self._chooser.randrange(400) if self._chooser.random() < 0.1 else None
            if cut is not None:
                self.thrown.append("cut")
            yield cut

    def garble(self, _: Command, piece: bytes) -> bytes:
        with self._lock:
            roll = self._chooser.random()
            if roll < 0.1:
                self._kill_something()
            if roll < 0.95:
                return piece
            self.thrown.append("garbled")
            place = self._chooser.randrange(len(piece))
            return piece[:place] + bytes([piece[place] ^ 0x20]) + piece[place + 1 :]

    def _kill_something(self) -> None:
        jobs = [
            pid for pid, line in processes_under(self._workdir).items() if "fake_bench" in line or " start " in line
        ]
        if jobs:
            self.thrown.append("killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chooser.choice(sorted(jobs)), signal.SIGKILL)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(11, 1), pytest.param(13, 2, marks=pytest.mark.slow), *seeds_by_hand(rounds=6)]
)
def test_random_faults_leave_every_trial_with_one_true_end(tmp_path: Path, seed: int, rounds: int) -> None:
    with LocalFleet(tmp_path) as local:
        names = [
            f"{kind} {number}" for number in range(rounds) for kind in ("steps", "fine", "killed-once", "oom-result")
        ]
        local.plan(*names, workers=3)
        dice = [
            Dice(seed * 100 + number, host.workdir, begins=number == 0) for number, host in enumerate(local.hosts(3))
        ]
        wires = [
            CuttableHost(host=host, before=each.before, cuts=each.cuts(), garble=each.garble)
            for host, each in zip(local.hosts(3), dice, strict=True)
        ]
        local.fleet(wires, limits=replace(QUICK, max_attempts=20, lost_after_sec=0.3)).run()

        thrown = {fault for each in dice for fault in each.thrown}
        # Which faults fall depends on how fast the workers are, not on the seed alone: no kind is certain.
        assert thrown, "the dice were too kind to show anything"
        for trial_id, end in local.ends().items():
            wanted = "OUT_OF_MEMORY" if trial_id.startswith("oom") else "SUCCEEDED"
            assert end == wanted, (trial_id, local.reasons()[trial_id])
