"""A training's adapter as it came home, and the worker that works on it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_CHECK_FILE, ADAPTER_FOLDER, TRAINING_FILE
from bench.records.run import RunRecord
from bench.records.training import AdapterCheck, TrainingRecord
from remote.jobs.agent import Agent
from remote.jobs.transfer import push
from tasks.clients.worker_queries import translate_host_errors
from tasks.clients.workers import adapter_work, workers
from tasks.errors import ConfirmationRequired, UsageError, one_line, translate_errors
from tasks.fleet.install_adapter import WEIGHTS_FILE
from tasks.fleet.run_store import TRAIN, newest_training, open_run
from tasks.fleet.runner import refuse_busy_workers
from tasks.settings.load import Settings

MERGED_FILE, MERGED_FOLDER = "merged.json", "merged"


@dataclass(frozen=True, kw_only=True)
class TrainedAdapter:
    """A training that came home with an adapter."""

    run: RunRecord
    folder: Path
    record: TrainingRecord

    @property
    def adapter(self) -> Path:
        return self.folder / ADAPTER_FOLDER

    @property
    def trial(self) -> Trial:
        return self.run.planned[0].trial

    @property
    def model_sha256(self) -> str | None:
        found = self.run.provenance.get("inputs", {}).get("model", {}).get("sha256")
        return found if isinstance(found, str) else None

    @property
    def files(self) -> dict[str, str]:
        """The data files' sha256 by their paths."""
        return dict(self.run.provenance.get("inputs", {}).get("files", {}))

    def check(self) -> AdapterCheck | None:
        """What `inv adapter.check` found of this adapter; None where it was not checked. Raises Refused."""
        path = self.folder / ADAPTER_CHECK_FILE
        if not path.exists():
            return None
        with translate_errors(
            ConfirmationRequired,
            ResultError,
            after=f"; remove it, then type: inv adapter.check --run={self.run.run_id}",
        ):
            found = AdapterCheck.read(path)
        return found if found.adapter_sha256 == self.record.adapter_sha256 else None

    def merged(self) -> dict[str, Any] | None:
        """Where `inv adapter.merge` put this adapter's model: path and base; None where there is none."""
        try:
            found = json.loads((self.folder / MERGED_FILE).read_bytes())
        except (OSError, ValueError):
            return None
        is_ours = isinstance(found, dict) and found.get("adapter_sha256") == self.record.adapter_sha256
        if not is_ours or not isinstance(found.get("path"), str):
            return None
        # Of a folder on a worker nothing is known here.
        return found if self.run.fleet_kind != "local" or Path(found["path"]).is_dir() else None

    def note_merged(self, path: str, facts: dict[str, Any]) -> None:
        """Raises OSError."""
        document = {"path": path, **facts}
        write_atomic(self.folder / MERGED_FILE, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def open_training(settings: Settings, name: str | None) -> TrainedAdapter:
    """The training of this id, or the newest. Raises UsageError and Refused."""
    run, folder = open_run(settings, name or newest_training(settings.results_folder))
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(f"run {run.run_id} is no training; name one with --run, `inv runs` lists them")
    home = f"`inv collect --run={run.run_id}` brings it home"
    with translate_errors(UsageError, ResultError, after=f"; {home}"):
        record = TrainingRecord.read(folder / TRAINING_FILE)
    weights = folder / ADAPTER_FOLDER / WEIGHTS_FILE
    if record.adapter_sha256 is None or not weights.is_file():
        raise UsageError(f"run {run.run_id} has no adapter here; {home}, once its training has ended well")
    if sha256_of(weights) != record.adapter_sha256:
        raise ConfirmationRequired(
            f"{weights}: its sha256 is not the one in {TRAINING_FILE}; {home} again once it is removed"
        )
    return TrainedAdapter(run=run, folder=folder, record=record)


def print_line(words: str) -> None:
    """A worker's words as they come."""
    print(one_line(words), flush=True)


def on_worker(
    settings: Settings,
    trained: TrainedAdapter,
    what: str,
    wish: Mapping[str, Any],
    hear: Callable[[str], None] = print_line,
) -> Mapping[str, Any]:
    """What the first worker, which nobody else uses, found with the adapter there. Raises a task's errors."""
    host = workers(settings)[0]
    refuse_busy_workers(settings, [host])
    place = str(trained.adapter)
    with translate_host_errors():
        if settings.fleet.kind != "local":
            place = f"{host.workdir}/adapters/{trained.record.adapter_sha256}"
            push(Agent(host), trained.adapter, place)
        whole = {"adapter": place, "model_sha256": trained.model_sha256, **wish}
        return adapter_work(settings, host, what, whole, hear)
