"""Checkpoint transfer of a running training: downloads to this machine, uploads to a replacement, cost of restarts.

If the workers share a volume, the checkpoints are on it and nothing is transferred. Otherwise they are on the leader's
own disk, which is lost with its pod. Each new checkpoint is downloaded while the training runs, and its files are
compared with the sha256 in its manifest; it counts once its folder has its final name. Before an attempt starts, the
newest local checkpoint is uploaded to the leader, unless the leader has one at least as new.

Not covered: steps since the last downloaded checkpoint, if the leader's disk is lost.
"""

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.records import schema
from bench.records.atomic_files import sha256_of
from bench.records.paths import MANIFEST_FILE
from bench.records.run import PlannedTrial, Progress
from remote.fleet.ledger import Ledger
from remote.hosts.base import HostError, check
from remote.hosts.command import Command
from remote.jobs.job import Agent
from remote.jobs.transfer import pull, push

MAX_LOCAL_CHECKPOINTS = 2
CHECKPOINT_NAME = re.compile(r"step-\d{8}\Z")
_LIST_TIMEOUT_SEC = 60.0


@dataclass(kw_only=True)
class _AttemptProgress:
    """Reported progress of one attempt. `checkpoint_at`: monotonic time of the newest checkpoint's report."""

    attempt: int
    first_step: int
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None


@dataclass(kw_only=True)
class CheckpointSync:
    """Checkpoint transfer and restart costs of a run's only training.

    `remote_folder` computes the folder of the checkpoints on a host from the host's workdir. `local_folder` is the one
    on this machine; None: nothing is transferred. `usd_per_sec` is the price of all workers together; None: unknown.
    """

    ledger: Ledger
    remote_folder: Callable[[str], str]
    local_folder: Path | None = None
    usd_per_sec: float | None = None
    clock: Callable[[], float] = time.monotonic
    _current: _AttemptProgress | None = None
    _previous: _AttemptProgress | None = None
    _download: threading.Thread | None = None
    _downloaded: set[int] = field(default_factory=set)

    def upload_newest(self, agent: Agent, planned: PlannedTrial) -> None:
        """Upload the newest local checkpoint to the leader, before an attempt starts. Raises HostError."""
        if self.local_folder is None or planned.trial.training is None:
            return
        self.wait()
        newest = max((path for path in _local_checkpoints(self.local_folder) if is_complete(path)), default=None)
        remote_folder = self.remote_folder(agent.host.workdir)
        if newest is None or max(_remote_checkpoints(agent, remote_folder), default="") >= newest.name:
            return
        push(agent, newest, f"{remote_folder}/{newest.name}")

    def on_progress(self, agent: Agent, planned: PlannedTrial, attempt: int, progress: Progress) -> None:
        """Process a running attempt's progress: download a new checkpoint, record a restart. Raises LedgerError."""
        if planned.trial.training is None:
            return
        if self._current is None or self._current.attempt != attempt:
            self._previous, self._current = self._current, _AttemptProgress(attempt=attempt, first_step=progress.step)
        if progress.loss is None:  # before its own first step; it reports step 0 while it reads the data
            self._current.first_step = progress.step
        step = progress.checkpoint_step
        if step is not None and step != self._current.checkpoint_step:
            self._current.checkpoint_step, self._current.checkpoint_at = step, self.clock()
        if attempt > 1 and progress.step > self._resume_step():
            self._record_restart(planned, attempt)
        if step is None or self.local_folder is None or step in self._downloaded or self._is_downloading():
            return
        args = (agent, step, self.local_folder)
        self._download = threading.Thread(target=self._download_checkpoint, args=args, name="checkpoints", daemon=True)
        self._download.start()

    def wait(self) -> None:
        """Wait until no download is running. A download has its own deadline."""
        if self._download is not None:
            self._download.join()

    def _resume_step(self) -> int:
        """Return the step of the checkpoint that the current attempt resumes from, as far as reported."""
        current, previous = self._current, self._previous
        first_step = 0 if current is None else current.first_step
        return first_step or (previous.checkpoint_step if previous is not None else None) or 0

    def _record_restart(self, planned: PlannedTrial, attempt: int) -> None:
        """Record the cost of a restart, once: the time since the checkpoint that it resumes from."""
        if self.ledger.has_restarted(planned.trial_id, attempt):
            return
        previous, lost_sec = self._previous, None
        if previous is not None and previous.checkpoint_at is not None:
            lost_sec = round(self.clock() - previous.checkpoint_at, 1)
        usd = None if lost_sec is None or self.usd_per_sec is None else round(lost_sec * self.usd_per_sec, 4)
        workers, step = planned.trial.world_size, self._resume_step()
        self.ledger.record_restart(planned.trial_id, attempt, step=step, lost_sec=lost_sec, workers=workers, usd=usd)

    def _is_downloading(self) -> bool:
        return self._download is not None and self._download.is_alive()

    def _download_checkpoint(self, agent: Agent, step: int, local_folder: Path) -> None:
        """Download one checkpoint. A failure is ignored: the next checkpoint replaces it."""
        name = f"step-{step:08d}"
        partial = local_folder / f".{name}"
        with contextlib.suppress(HostError, OSError):
            partial.mkdir(parents=True, exist_ok=True)
            pull(agent, f"{self.remote_folder(agent.host.workdir)}/{name}", partial)
            if is_complete(partial):
                shutil.rmtree(local_folder / name, ignore_errors=True)
                partial.rename(local_folder / name)
                self._downloaded.add(step)
                for old in sorted(_local_checkpoints(local_folder))[:-MAX_LOCAL_CHECKPOINTS]:
                    shutil.rmtree(old)
        shutil.rmtree(partial, ignore_errors=True)


def _local_checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if CHECKPOINT_NAME.match(path.name)] if folder.is_dir() else []


def is_complete(folder: Path) -> bool:
    """Check that a checkpoint has every file of its manifest, each with its sha256."""
    try:
        files = schema.parse_object((folder / MANIFEST_FILE).read_bytes())["files"]
        is_flat = all(Path(name).name == name for name in files)
        has_hashes = all(sha256_of(folder / name) == facts["sha256"] for name, facts in files.items() if is_flat)
        return bool(files) and is_flat and has_hashes
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _remote_checkpoints(agent: Agent, folder: str) -> list[str]:
    """List the names of the checkpoints in a folder of the host, which need not exist. Raises HostError."""
    command = Command(argv=("sh", "-c", '[ ! -d "$1" ] || ls -A -- "$1"', "sh", folder))
    completed = check(agent.host, command, agent.host.run(command, timeout_sec=_LIST_TIMEOUT_SEC))
    return [name for name in os.fsdecode(completed.stdout).splitlines() if CHECKPOINT_NAME.match(name)]
