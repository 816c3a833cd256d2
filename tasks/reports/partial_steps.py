"""Fetch a running training's steps.jsonl from its leading worker.

Nothing else in the run's folder changes: `inv collect` fetches the rest and checks its checksums. A benchmark needs no
partial steps: `inv bench` fetches its trials one by one.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from bench.records.paths import LEDGER_FILE, STEPS_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from remote.fleet.fetch_result import OUT_FOLDER
from remote.fleet.ledger import Ledger
from remote.hosts.base import Host, HostError
from remote.jobs.agent import Agent
from remote.jobs.transfer import pull
from tasks.clients.workers import run_hosts
from tasks.fleet.k8s_training import sync_ledger as volume
from tasks.fleet.k8s_training.volume_reader import is_k8s_training, training_pods
from tasks.settings.load import Settings

PARTIAL_FOLDER = "so-far"  # in the run's folder, with a subfolder per attempt
_PULL_TIMEOUT_SEC = 60.0


class PartialSteps:
    """Local copy of a running training's steps."""

    def __init__(self, settings: Settings, run: RunRecord, folder: Path) -> None:
        self._settings, self._run, self._folder = settings, run, folder
        self._trial_id = run.planned[0].trial_id

    @property
    def path(self) -> Path | None:
        """Local steps.jsonl of the newest attempt; None before the first fetch and after `inv collect`."""
        partial_files = (self._folder / PARTIAL_FOLDER).glob(f"*/{STEPS_FILE}")
        return max(partial_files, key=lambda path: int(path.parent.name), default=None)

    def fetch_steps(self) -> bool:
        """Update the copy; return whether the training is running. Raises HostError, LedgerError and OSError."""
        entry = Ledger(self._folder / LEDGER_FILE).entries.get(self._trial_id)
        if entry is None:
            return False
        is_running = entry.status is None
        if not is_running and (self._folder / TRIALS_FOLDER / self._trial_id / TRAINING_FILE).exists():
            shutil.rmtree(self._folder / PARTIAL_FOLDER, ignore_errors=True)
            return False
        if is_k8s_training(self._run) and is_running:
            host = self._host(self._run.workers[0])
            numbers = [number for number, *_ in volume.read_volume_state(self._run, host).attempts]
            if numbers:
                source = f"{volume.run_folder_on_volume(self._run)}/{self._trial_id}.{numbers[-1]}"
                self._fetch(host, source, numbers[-1])
        elif entry.attempts and not is_k8s_training(self._run):
            newest = entry.attempts[-1]
            self._fetch(self._host(newest.worker), f"{newest.folder}/{OUT_FOLDER}", newest.number)
        return is_running

    def _fetch(self, host: Host, source: str, attempt: int) -> None:
        target = self._folder / PARTIAL_FOLDER / str(attempt)
        target.mkdir(parents=True, exist_ok=True)
        pull(Agent(host), source, target, only=(STEPS_FILE,), timeout_sec=_PULL_TIMEOUT_SEC)

    @cached_property
    def _hosts(self) -> Mapping[str, Host]:
        open_hosts = training_pods if is_k8s_training(self._run) else run_hosts
        hosts: Sequence[Host] = open_hosts(self._settings, self._run)
        return {host.name: host for host in hosts}

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            raise HostError(f"{name} is not in this fleet; see fleet.size")
        return host
