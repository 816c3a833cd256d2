"""What a training has measured so far, brought here while it goes on: its steps.jsonl, from the worker that leads it.

Nothing else of the run's folder is touched: `inv collect` brings the rest, and its sums are over that. A benchmark's
trials come home one by one anyway, while `inv bench` follows them.
"""

import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from bench.records.paths import LEDGER_FILE, STEPS_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from remote.fleet.fetch_result import OUT_FOLDER
from remote.fleet.ledger import Ledger
from remote.hosts.host import Host, HostError
from remote.jobs.agent import Agent
from remote.jobs.transfer import pull
from tasks.clients.workers import workers
from tasks.fleet.k8s_training import sync_ledger as volume
from tasks.fleet.k8s_training.volume_reader import is_ordered, pods_of
from tasks.settings.load import Settings

SO_FAR_FOLDER = "so-far"  # below the run's folder, a folder for each attempt
_PULL_SEC = 60.0


class PartialSteps:
    """One training, whose worker is asked for its steps."""

    def __init__(self, settings: Settings, run: RunRecord, folder: Path) -> None:
        self._settings, self._run, self._folder = settings, run, folder
        self._trial_id = run.planned[0].trial_id

    @property
    def path(self) -> Path | None:
        """The newest attempt's steps.jsonl here; None before anything came, and once `inv collect` brought it all."""
        here = (self._folder / SO_FAR_FOLDER).glob(f"*/{STEPS_FILE}")
        return max(here, key=lambda path: int(path.parent.name), default=None)

    def fetch_steps(self) -> bool:
        """Bring it up to date; whether it goes on. Raises HostError, LedgerError and OSError."""
        entry = Ledger(self._folder / LEDGER_FILE).entries.get(self._trial_id)
        if entry is None:
            return False
        goes_on = entry.end is None
        if not goes_on and (self._folder / TRIALS_FOLDER / self._trial_id / TRAINING_FILE).exists():
            shutil.rmtree(self._folder / SO_FAR_FOLDER, ignore_errors=True)
            return False
        if is_ordered(self._run) and goes_on:
            host = self._host(self._run.workers[0])
            numbers = [number for number, *_ in volume.inspect(self._run, host).attempts]
            if numbers:
                place = f"{volume.place_of_run(self._run)}/{self._trial_id}.{numbers[-1]}"
                self._take(host, place, numbers[-1])
        elif entry.attempts and not is_ordered(self._run):
            newest = entry.attempts[-1]
            self._take(self._host(newest.worker), f"{newest.folder}/{OUT_FOLDER}", newest.number)
        return goes_on

    def _take(self, host: Host, place: str, attempt: int) -> None:
        into = self._folder / SO_FAR_FOLDER / str(attempt)
        into.mkdir(parents=True, exist_ok=True)
        pull(Agent(host), place, into, only=(STEPS_FILE,), timeout_sec=_PULL_SEC)

    @cached_property
    def _hosts(self) -> Mapping[str, Host]:
        hosts = pods_of(self._settings, self._run) if is_ordered(self._run) else workers(self._settings)
        return {host.name: host for host in hosts}

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            raise HostError(f"{name} is not in this fleet; see fleet.size")
        return host
