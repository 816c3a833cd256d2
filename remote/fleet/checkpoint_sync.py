"""A training's checkpoints come home while it runs and go to a replacement; what a restart cost goes into the ledger.

Where the workers share a volume the checkpoints are on it and nothing is moved. Elsewhere they are on the leader's own
disk, which dies with a pod: each new one is brought here beside the training, its files are compared with the sha256
in its manifest, and it counts once its folder has its name. Before an attempt starts, the newest one here goes to the
leader unless that has one as new.

Not covered: steps done since the last checkpoint came home, when the leader's disk is lost.
"""

import contextlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.records.atomic_files import sha256_of
from bench.records.paths import MANIFEST_FILE
from bench.records.run import PlannedTrial, Progress
from remote.fleet.ledger import Ledger
from remote.hosts.command import Command
from remote.hosts.host import HostError, HostUnreachable, check
from remote.jobs.agent import Agent
from remote.jobs.transfer import pull, push

KEPT = 2  # newest checkpoints at home
NAME = re.compile(r"step-\d{8}\Z")
_LIST = "import json, os, sys; print(json.dumps(os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else []))"
_LIST_SEC = 60.0


@dataclass(kw_only=True)
class _Run:
    """One attempt as it was heard of: its first step, and when (monotonic) its newest checkpoint was first named."""

    attempt: int
    first_step: int
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None


@dataclass(kw_only=True)
class CheckpointSync:
    """Looks after the one training of a run. `place` is the folder of its checkpoints on a host, from the host's
    workdir; `home` the folder here, None where nothing needs to come home. `usd_per_sec` is for all workers together,
    None where no price is known."""

    ledger: Ledger
    place: Callable[[str], str]
    home: Path | None = None
    usd_per_sec: float | None = None
    clock: Callable[[], float] = time.monotonic
    _heard: _Run | None = None
    _before: _Run | None = None
    _bringing: threading.Thread | None = None
    _brought: set[int] = field(default_factory=set)

    def provide(self, agent: Agent, planned: PlannedTrial) -> None:
        """Before an attempt: give the leader the newest checkpoint that is here. Raises HostError."""
        if self.home is None or planned.trial.training is None:
            return
        self.wait()
        newest = max((path for path in _kept(self.home) if is_whole(path)), default=None)
        place = self.place(agent.host.workdir)
        if newest is None or max(_listed(agent, place), default="") >= newest.name:
            return
        push(agent, newest, f"{place}/{newest.name}")

    def hear(self, agent: Agent, planned: PlannedTrial, attempt: int, progress: Progress) -> None:
        """Take the progress of a running attempt. Raises LedgerError."""
        if planned.trial.training is None:
            return
        if self._heard is None or self._heard.attempt != attempt:
            self._before, self._heard = self._heard, _Run(attempt=attempt, first_step=progress.step)
        if progress.loss is None:  # before its own first step: while it reads the data it says 0
            self._heard.first_step = progress.step
        step = progress.checkpoint_step
        if step is not None and step != self._heard.checkpoint_step:
            self._heard.checkpoint_step, self._heard.checkpoint_at = step, self.clock()
        if attempt > 1 and progress.step > self._goes_on_from():
            self._pay(planned, attempt)
        if step is not None and self.home is not None and step not in self._brought and not self._is_bringing():
            args = (agent, step, self.home)
            self._bringing = threading.Thread(target=self._bring, args=args, name="checkpoints", daemon=True)
            self._bringing.start()

    def wait(self) -> None:
        """Until no checkpoint is on its way. A pull has its own deadline."""
        if self._bringing is not None:
            self._bringing.join()

    def _goes_on_from(self) -> int:
        """The step of the checkpoint from which the present attempt goes on, as far as it was heard of."""
        now, before = self._heard, self._before
        said = 0 if now is None else now.first_step
        return said or (before.checkpoint_step if before is not None else None) or 0

    def _pay(self, planned: PlannedTrial, attempt: int) -> None:
        """Write what a restart cost, once: the time since the checkpoint from which it goes on."""
        if self.ledger.has_restarted(planned.trial_id, attempt):
            return
        before, lost_sec = self._before, None
        if before is not None and before.checkpoint_at is not None:
            lost_sec = round(self.clock() - before.checkpoint_at, 1)
        usd = None if lost_sec is None or self.usd_per_sec is None else round(lost_sec * self.usd_per_sec, 4)
        workers, step = planned.trial.world_size, self._goes_on_from()
        self.ledger.restarted(planned.trial_id, attempt, step=step, lost_sec=lost_sec, workers=workers, usd=usd)

    def _is_bringing(self) -> bool:
        return self._bringing is not None and self._bringing.is_alive()

    def _bring(self, agent: Agent, step: int, home: Path) -> None:
        """Bring one checkpoint home. One that cannot be brought now is not missed: the next one will be."""
        name = f"step-{step:08d}"
        into = home / f".{name}"
        with contextlib.suppress(HostError, OSError):
            into.mkdir(parents=True, exist_ok=True)
            pull(agent, f"{self.place(agent.host.workdir)}/{name}", into)
            if is_whole(into):
                shutil.rmtree(home / name, ignore_errors=True)
                into.rename(home / name)
                self._brought.add(step)
                for old in sorted(_kept(home))[:-KEPT]:
                    shutil.rmtree(old)
        shutil.rmtree(into, ignore_errors=True)


def _kept(home: Path) -> list[Path]:
    return [path for path in home.iterdir() if NAME.match(path.name)] if home.is_dir() else []


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint has every file of its manifest, each with its sha256."""
    try:
        listed = json.loads((folder / MANIFEST_FILE).read_bytes())["files"]
        names_stay_inside = all(Path(name).name == name for name in listed)
        hashes = all(sha256_of(folder / name) == facts["sha256"] for name, facts in listed.items() if names_stay_inside)
        return bool(listed) and names_stay_inside and hashes
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _listed(agent: Agent, place: str) -> list[str]:
    """The names of the checkpoints in a folder of the host; none where it is not there. Raises HostError."""
    command = Command(argv=(*agent.host.python, "-c", _LIST, place))
    done = check(agent.host, command, agent.host.run(command, timeout_sec=_LIST_SEC))
    try:
        return [name for name in json.loads(done.stdout) if NAME.match(name)]
    except (ValueError, TypeError):
        raise HostUnreachable(f"{agent.host.name}: the list of its checkpoints was cut short") from None
