"""The adapter that a training begins from: `train.init_adapter`, a run or a local folder.

It is verified before anything is sent: its sha256, its base by content, and that it has the shape and scale that the
settings give. The training starts at step 0 with its own schedule, and writes a checkpoint of step 0 at once: later
attempts do not need the adapter.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.adapter import read_lora_config
from bench.records.atomic_files import regular_file_size, sha256_of
from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_FOLDER, RUN_FILE, SUMS_FILE, TRAINING_FILE
from bench.records.run import RunRecord
from bench.records.sums_file import find_changed, read_sums
from bench.records.training import TrainingRecord
from remote.hosts.host_protocol import Host
from remote.jobs.job import Agent
from remote.jobs.transfer import push
from tasks.clients.worker_queries import translate_host_errors
from tasks.errors import ConfirmationRequired, UsageError, translate_errors
from tasks.fleet.collect import WEIGHTS_FILE
from tasks.fleet.run_store import find_run
from tasks.fleet.trial_spec import training_of
from tasks.settings.layers import Settings

SETTING, CONFIG_FILE = "train.init_adapter", "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class InitAdapter:
    """A verified adapter on this machine. `model_sha256` is that of its base, None if its folder does not record it."""

    folder: Path
    sha256: str
    model_sha256: str | None
    config: Mapping[str, Any]


def find_adapter(settings: Settings, *, has_worker: bool = True) -> InitAdapter | None:
    """Find and verify the adapter; None if the setting names none. Raises UsageError and ConfirmationRequired.

    `has_worker`: a worker answers, which gets the adapter.
    """
    name = settings.train.init_adapter
    if name is None:
        return None
    if settings.connector.is_cluster and settings.cluster.volume.handle is None:
        raise UsageError(
            f"{SETTING}: there is no shared volume to put the adapter on", remedy="set cluster.volume.handle"
        )
    if not has_worker:
        raise UsageError(
            f"{SETTING}: no worker answers to put the adapter on the shared volume",
            remedy="create one with `inv deploy`, then start the training again",
        )
    path = Path(name).expanduser()
    is_path = "/" in name or path.is_dir()
    folder = path if is_path else find_run(settings.results_folder, name)
    if folder.name == ADAPTER_FOLDER and (folder.parent / TRAINING_FILE).is_file():
        folder = folder.parent
    if (folder / RUN_FILE).is_file():
        return _adapter_of_run(folder)
    return _read_adapter(folder)


def _adapter_of_run(run_folder: Path) -> InitAdapter:
    collect = f"`inv collect --run={run_folder.name}` fetches the adapter of a training that has ended"
    with translate_errors(UsageError, ResultError, remedy=collect):
        run, record = RunRecord.read(run_folder / RUN_FILE), TrainingRecord.read(run_folder / TRAINING_FILE)
    folder = run_folder / ADAPTER_FOLDER
    if record.adapter_sha256 is None or not (folder / WEIGHTS_FILE).is_file():
        raise UsageError(f"{SETTING}: run {run_folder.name} has no adapter here", remedy=collect)
    model_sha256 = run.provenance.get("inputs", {}).get("model", {}).get("sha256")
    adapter = _read_adapter(folder, model_sha256 if isinstance(model_sha256, str) else None)
    if adapter.sha256 != record.adapter_sha256:
        raise ConfirmationRequired(
            f"{SETTING}: {folder / WEIGHTS_FILE}: sha256 differs from the one in {TRAINING_FILE}",
            remedy=f"remove it, then {collect}",
        )
    return adapter


def _read_adapter(folder: Path, model_sha256: str | None = None) -> InitAdapter:
    sha256 = _verified_sha256(folder)
    with translate_errors(UsageError, ResultError, prefix=f"{SETTING}: "):
        config = read_lora_config(folder / CONFIG_FILE)
    return InitAdapter(folder=folder.resolve(), sha256=sha256, model_sha256=model_sha256, config=config)


def _verified_sha256(folder: Path) -> str:
    """Return the weights' sha256 after comparing both files with the folder's SHA256SUMS, if it has one."""
    remedy = "name a run of `inv train`, or a folder that peft saved"
    try:
        for name in (WEIGHTS_FILE, CONFIG_FILE):
            regular_file_size(folder / name, follow=True)
        sums = read_sums(folder) if (folder / SUMS_FILE).exists() else {}
        changed = find_changed(folder, {name: sums[name] for name in (WEIGHTS_FILE, CONFIG_FILE) if name in sums})
        if changed is not None:
            raise ConfirmationRequired(
                f"{SETTING}: {folder / changed}: sha256 differs from the one in {SUMS_FILE}",
                remedy="copy the folder again",
            )
        return sha256_of(folder / WEIGHTS_FILE)
    except (OSError, ValueError) as error:
        where, why = getattr(error, "filename", None) or folder, getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{SETTING}: {where}: {why}", remedy=remedy) from error


def begin_from(adapter: InitAdapter, trial: Trial, model_sha256: str, job: Mapping[str, Any]) -> Trial:
    """Return the trial that begins from the adapter, at its path where the job runs.

    Raises UsageError if the training's base, rank, scale or layers are not those of the adapter.
    """
    if adapter.model_sha256 not in (None, model_sha256):
        raise UsageError(
            f"{SETTING}: {adapter.folder}: was trained on another model (sha256 {str(adapter.model_sha256)[:12]}, "
            f"that at model.path is {model_sha256[:12]})",
            remedy="set model.path to its base, or name another adapter",
        )
    expected = (
        ("r", "train.lora_rank", trial.lora_rank),
        ("lora_alpha", "train.lora_alpha", trial.lora_alpha),
    )
    for key, setting, value in expected:
        if adapter.config[key] != value:
            raise UsageError(
                f"{SETTING}: {adapter.folder}: {key} is {str(adapter.config[key])[:40]}, {setting} is {value}",
                remedy=f"set {setting} to the adapter's value",
            )
    targets = adapter.config.get("target_modules")
    if not isinstance(targets, list) or set(map(str, targets)) != set(trial.lora_targets):
        shown = ", ".join(sorted(map(str, targets)))[:120] if isinstance(targets, list) else str(targets)[:120]
        raise UsageError(
            f"{SETTING}: {adapter.folder}: target_modules is {shown}, the training's layers are "
            f"{', '.join(trial.lora_targets)}",
            remedy="set train.lora_targets to the adapter's layers",
        )
    training = dataclasses.replace(training_of(trial), init_adapter=_path_for(adapter, job), init_sha256=adapter.sha256)
    return dataclasses.replace(trial, training=training)


def describe(adapter: InitAdapter) -> str:
    """Return one line on the adapter that a training begins from."""
    unknown = "" if adapter.model_sha256 else "; no record of its base: only names and shapes are compared"
    return f"begins from the adapter {adapter.sha256[:12]} in {adapter.folder}{unknown}"


def _path_for(adapter: InitAdapter, job: Mapping[str, Any]) -> str:
    """Return the adapter's path on the volume of a training's pods, or on this machine."""
    return f"{job['shared']}/adapters/{adapter.sha256}" if "overlay" in job else str(adapter.folder)


def send(adapter: InitAdapter | None, job: Mapping[str, Any], hosts: Sequence[Host]) -> None:
    """Send the adapter to the pods' volume, through the first host. Raises task errors."""
    if adapter is not None and "overlay" in job:
        files = {name: adapter.folder / name for name in (WEIGHTS_FILE, CONFIG_FILE)}
        with translate_host_errors():
            push(Agent(hosts[0]), files, _path_for(adapter, job))
