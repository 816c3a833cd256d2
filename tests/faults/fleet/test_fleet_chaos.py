"""Random faults from a seed: cut and garbled streams, unreachable hosts, killed trials and supervisors.

With any faults, every trial has one end, every SUCCEEDED has a verified result, and no process remains.
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
from remote.hosts.host_protocol import HostUnreachable
from tests.support.hosts.local_fleet import QUICK_LIMITS, CuttableHost, LocalFleet, processes_under
from tests.support.thorough import chaos_seeds, only_thorough


class FaultDice:
    """A random choice of faults for each command and chunk on one host's connection; records the injected ones."""

    def __init__(self, seed: int, workdir: str, *, fails_first: bool) -> None:
        """Create the dice. With `fails_first` the first command always fails, because a short run has few commands."""
        self._fails_first = fails_first
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._workdir = Path(workdir)
        self._unreachable_calls = 0
        self.injected: list[str] = []

    def before(self, _: Command) -> None:
        with self._lock:
            if self._unreachable_calls:
                self._unreachable_calls -= 1
                raise HostUnreachable("out of reach for a while")
            if self._random.random() < 0.06 or (self._fails_first and not self.injected):
                self.injected.append("unreachable")
                self._unreachable_calls = self._random.randrange(1, 12)
                raise HostUnreachable("out of reach for a while")

    def cuts(self) -> Iterator[int | None]:
        while True:
            with self._lock:
                cut = self._random.randrange(400) if self._random.random() < 0.1 else None
            if cut is not None:
                self.injected.append("cut")
            yield cut

    def garble(self, _: Command, chunk: bytes) -> bytes:
        with self._lock:
            value = self._random.random()
            if value < 0.1:
                self._kill_a_job()
            if value < 0.95:
                return chunk
            self.injected.append("garbled")
            position = self._random.randrange(len(chunk))
            return chunk[:position] + bytes([chunk[position] ^ 0x20]) + chunk[position + 1 :]

    def _kill_a_job(self) -> None:
        jobs = [
            pid for pid, line in processes_under(self._workdir).items() if "fake_bench" in line or " start " in line
        ]
        if jobs:
            self.injected.append("killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(sorted(jobs)), signal.SIGKILL)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(11, 1), pytest.param(13, 2, marks=only_thorough), *chaos_seeds(rounds=6)]
)
def test_random_faults_leave_every_trial_with_one_correct_end(tmp_path: Path, seed: int, rounds: int) -> None:
    with LocalFleet(tmp_path) as local:
        names = [
            f"{kind} {number}" for number in range(rounds) for kind in ("steps", "fine", "killed-once", "oom-result")
        ]
        local.plan(*names, workers=3)
        dice = [
            FaultDice(seed * 100 + number, host.workdir, fails_first=number == 0)
            for number, host in enumerate(local.hosts(3))
        ]
        wires = [
            CuttableHost(host=host, before=faults.before, cuts=faults.cuts(), garble=faults.garble)
            for host, faults in zip(local.hosts(3), dice, strict=True)
        ]
        local.fleet(wires, limits=replace(QUICK_LIMITS, max_attempts=20, lost_after_sec=0.3)).run()

        injected = {fault for faults in dice for fault in faults.injected}
        # The injected faults depend on the workers' speed, not only on the seed: no kind is certain.
        assert injected, "no fault was injected"
        for trial_id, end in local.statuses().items():
            expected = "OUT_OF_MEMORY" if trial_id.startswith("oom") else "SUCCEEDED"
            assert end == expected, (trial_id, local.reasons()[trial_id])
