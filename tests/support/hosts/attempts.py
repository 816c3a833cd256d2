"""Attempts of one fine-tuning: processes of `python -m bench run` with common checkpoints, which a test can hold."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.records import Trial
from tests.support.forked import ForkServer
from tests.support.hosts.local_fleet import wait_for

WAIT_SEC = 240.0
RUN = "\nimport runpy, sys\nsys.argv[0] = 'bench'\nrunpy.run_module('bench', run_name='__main__')"
# After the step `last`, checkpoints are written only once the file `gate` exists, so that a test can interrupt a
# training in time, even on a busy machine. Ranks are forked from the trial's process and inherit the change.
HELD_SAVES = """
import time
from bench.workloads.finetune.checkpoint_manager import CheckpointManager

save = CheckpointManager.save

def held_save(manager, state, *, wait=False):
    while state.step > last and not gate.exists():
        time.sleep(0.01)
    return save(manager, state, wait=True)

CheckpointManager.save = held_save
"""


class Attempts:
    """The attempts of one training over the checkpoints in `home`, of one process each or one for each machine."""

    def __init__(self, home: Path, server: ForkServer, environment: Mapping[str, str]) -> None:
        self.home, self._server, self._environment = home, server, environment
        self.number, self.started = 0, list[subprocess.Popen[str]]()
        home.mkdir(parents=True)

    @property
    def out(self) -> Path:
        """The folder of the first machine's result."""
        return self.home / f"out-{self.number}-0"

    @property
    def gate(self) -> Path:
        """A file that, once it exists, lets the held attempt continue."""
        return self.home / f"gate-{self.number}"

    def start(
        self,
        trial: Trial,
        *,
        held_after: int | None = None,
        before: str = "",
        machines: Sequence[Mapping[str, str]] = ({},),
    ) -> list[subprocess.Popen[str]]:
        """Start an attempt, a process for the variables of each machine, which first runs the code `before`."""
        self.number += 1
        (self.home / "trial.json").write_text(trial.to_text())
        if held_after is not None:
            before += f"\nfrom pathlib import Path\nlast, gate = {held_after}, Path({str(self.gate)!r})\n{HELD_SAVES}"
        processes = []
        for number, variables in enumerate(machines):
            temporary = self.home / f"tmp-{self.number}-{number}"
            temporary.mkdir(exist_ok=True)
            argv = (
                *("-c", before + RUN, "run", "--trial", str(self.home / "trial.json")),
                *("--out", str(self.home / f"out-{self.number}-{number}")),
                *("--checkpoints", str(self.home / "checkpoints"), "--attempt", str(self.number)),
            )
            environment = {**self._environment, "TMPDIR": str(temporary), **variables}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(self._server.start(*argv, env=environment, start_new_session=True, **pipes))
        self.started += processes
        return processes

    def wait_for_checkpoint(self, processes: Sequence[subprocess.Popen[str]], step: int) -> None:
        """Wait for a checkpoint of this step or a later one, while all processes run."""

        def is_written() -> bool:
            assert all(each.poll() is None for each in processes), [each.communicate() for each in processes]
            return self.newest_step >= step

        wait_for(is_written, f"a checkpoint of step {step}", WAIT_SEC)

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        return max((int(path.name[5:]) for path in (self.home / "checkpoints").glob("step-*")), default=0)

    def rank_pids(self) -> dict[int, int]:
        """Return the pids of this attempt's ranks by rank."""
        heartbeats = self.home.glob(f"tmp-{self.number}-*/qlora-fleet-ranks-*/rank-*.json")
        return {int(path.stem[5:]): json.loads(path.read_text())["pid"] for path in heartbeats}
