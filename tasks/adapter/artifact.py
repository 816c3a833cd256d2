"""Collected adapter of a training, and commands on it that the first worker runs."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial, schema
from bench.records.adapter import AdapterCheck
from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_CHECK_FILE, ADAPTER_FOLDER, TRAINING_FILE
from bench.records.run import RunRecord
from bench.records.sums_file import find_changed, read_sums
from bench.records.training import TrainingRecord
from remote.jobs.job import Agent
from remote.jobs.transfer import push
from tasks.clients.worker_queries import translate_host_errors
from tasks.clients.workers import bench_program, fleet_hosts
from tasks.errors import ConfirmationRequired, UsageError, escape_controls, translate_errors
from tasks.fleet.collect import WEIGHTS_FILE
from tasks.fleet.run_store import TRAIN, newest_training, open_run, refuse_unended
from tasks.fleet.runner import refuse_busy_workers
from tasks.settings.layers import Settings

MERGED, MERGED_FILE = "merged", "merged.json"  # folder of the merged model in a run, and its record
VOLUME = "/shared-data"  # mounted in pods


@dataclass(frozen=True, kw_only=True)
class TrainedAdapter:
    """Collected training with an adapter."""

    run: RunRecord
    folder: Path
    record: TrainingRecord

    @property
    def adapter(self) -> Path:
        return self.folder / ADAPTER_FOLDER

    @property
    def trial(self) -> Trial:
        """The planned trial with what the training derived from its data."""
        return self.run.planned[0].trial.with_derived(self.record.derived)

    @property
    def model_sha256(self) -> str | None:
        sha256 = self.run.provenance.get("inputs", {}).get("model", {}).get("sha256")
        return sha256 if isinstance(sha256, str) else None

    def read_check(self) -> AdapterCheck | None:
        """Read the result of `inv adapter.check` for this adapter, None if missing. Raises ConfirmationRequired."""
        path = self.folder / ADAPTER_CHECK_FILE
        if not path.exists():
            return None
        with translate_errors(
            ConfirmationRequired,
            ResultError,
            remedy=f"remove it, then type: inv adapter.check --run={self.run.run_id}",
        ):
            check = AdapterCheck.read(path)
        return check if check.adapter_sha256 == self.record.adapter_sha256 else None

    def read_merged(self) -> dict[str, Any] | None:
        """Read path and base of this adapter's merged model, None if missing."""
        try:
            record = schema.parse_object((self.folder / MERGED_FILE).read_bytes())
        except (OSError, ValueError):
            return None
        is_ours = record.get("adapter_sha256") == self.record.adapter_sha256
        if not is_ours or not isinstance(record.get("path"), str):
            return None
        # Whether a folder on a remote worker exists is unknown here.
        return record if not self.run.is_on_one_machine or Path(record["path"]).is_dir() else None

    def write_merged(self, path: str, facts: dict[str, Any]) -> None:
        """Record path and facts of this adapter's merged model. Raises OSError."""
        document = {"path": path, **facts}
        write_atomic(self.folder / MERGED_FILE, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def open_training(settings: Settings, name: str | None) -> TrainedAdapter:
    """Open the training with this id, or the newest one. Raises task errors."""
    run, folder = open_run(settings, name or newest_training(settings.results_folder))
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(
            f"run {run.run_id} is a benchmark, not a training", remedy="choose one of `inv runs` with --run"
        )
    refuse_unended(folder)
    collect = f"`inv collect --run={run.run_id}` fetches it"
    with translate_errors(UsageError, ResultError, remedy=collect):
        record = TrainingRecord.read(folder / TRAINING_FILE)
    weights = folder / ADAPTER_FOLDER / WEIGHTS_FILE
    if record.adapter_sha256 is None or not weights.is_file():
        raise UsageError(
            f"run {run.run_id} has no adapter here", remedy=f"{collect} after a successful end of the training"
        )
    if (changed := _find_changed_file(folder, record.adapter_sha256)) is not None:
        raise ConfirmationRequired(
            f"{folder / changed}: missing, or changed since the training was collected", remedy=f"{collect} again"
        )
    return TrainedAdapter(run=run, folder=folder, record=record)


def _find_changed_file(folder: Path, sha256: str) -> str | None:
    """Return the first of the adapter's files that is not as collected; weights without SHA256SUMS by `sha256`."""
    prefix, digests = f"{ADAPTER_FOLDER}/", dict[str, str]()
    with contextlib.suppress(OSError, ValueError):  # runs that were not collected have no sums
        digests = {name: digest for name, digest in read_sums(folder).items() if name.startswith(prefix)}
    return find_changed(folder, {**digests, f"{prefix}{WEIGHTS_FILE}": sha256})


def _print_text(text: str) -> None:
    print("\n".join(map(escape_controls, text.splitlines())), flush=True)


def run_on_worker(
    settings: Settings, trained: TrainedAdapter, command_name: str, request: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Run a command on the first worker with the adapter, print its messages and return its result.

    Raises task errors.
    """
    host, program = fleet_hosts(settings)[0], bench_program(settings)
    refuse_busy_workers(settings.results_folder, program, [host])
    adapter_folder = str(trained.adapter)
    with translate_host_errors():
        if not settings.connector.is_local:
            adapter_folder = f"{host.workdir}/adapters/{trained.record.adapter_sha256}"
            push(Agent(host), trained.adapter, adapter_folder)
        full_request = {"adapter": adapter_folder, "model_sha256": trained.model_sha256, **request}
        return program.run_adapter(host, command_name, full_request, _print_text)
