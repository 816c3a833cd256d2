"""Choice of the checkpoint to resume from: the newest complete one that was made with the same settings.

Standard library only. A broken checkpoint is logged and the previous one is used. If checkpoints exist but none is
complete, the training is rejected: starting from scratch would overwrite work that the user may want to recover. A
complete checkpoint with other data, another model or other settings is rejected with the list of differences.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError, InputRejected
from bench.machine.fingerprint import code_digest
from bench.records import Trial, schema
from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.paths import RESTARTS_FILE
from bench.records.training import Restart
from bench.records.units import format_mib
from bench.workloads.finetune import checkpoint
from bench.workloads.finetune.checkpoint import BrokenCheckpoint, Identity, State

# Settings that may change between attempts: they affect neither a step's result nor the choice of the final adapter.
MUTABLE_SETTINGS = {
    *("name", "reason", "suite", "profile", "model", "data", "world_size", "deadline_sec", "data_workers"),
    *("layout", "warmup_steps", "measured_steps", "new_tokens", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints", "held_layers"),
    *("training.data", "training.checkpoint_sec", "training.keep_checkpoints", "training.max_hours"),
    *("training.input_digests", "training.init_adapter", "derive"),
    *("training.score", "training.score_rows"),
}
# Not mutable in the recipe `fast`: a recomputed layer starts from its input in bf16, so its gradients differ.
RECOMPUTATION_SETTINGS = {"gradient_checkpointing", "checkpoint_every"}


def identify(trial: Trial, model: str, data: str) -> Identity:
    """Return the identity of a training over a model and data with these digests."""
    return Identity(model=model, data=data, code=code_digest(), settings=settings_of(trial))


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """A checkpoint to resume from.

    `written` is its time by the file system's clock: a later checkpoint may replace it.
    """

    path: Path
    written: float
    state: State


def settings_of(trial: Trial) -> dict[str, Any]:
    """Return the settings that must not change, as a flat dict: `lora_rank`, `training.schedule`, ..."""
    document = schema.to_json(trial)
    flat = {**document, **{f"training.{key}": value for key, value in document.pop("training").items()}}
    flat.pop("training", None)
    mutable = MUTABLE_SETTINGS - RECOMPUTATION_SETTINGS if trial.recipe == "fast" else MUTABLE_SETTINGS
    return {key: value for key, value in flat.items() if key not in mutable}


def find_checkpoint(checkpoints: Path, current: Identity, log: Callable[[str], None]) -> ResumePoint | None:
    """Find the checkpoint to resume from; None if no checkpoint exists. Raises InputRejected and InputError."""
    broken: list[str] = []
    others: list[str] = []
    for path in checkpoint.list_checkpoints(checkpoints):
        try:
            manifest, written = checkpoint.verify(path), (path / checkpoint.MANIFEST).stat().st_mtime
        except (BrokenCheckpoint, OSError) as error:
            broken.append(str(error))
            log(f"skipped a broken checkpoint: {error}")
            continue
        if changed := differences(manifest.identity, current):
            others.append(f"{path}: made with {'; '.join(changed)}")
            continue
        for other in others:
            log(f"skipped: {other}")
        if manifest.identity.code != current.code:
            log(f"{path}: written by another version of this program: results may differ in their last bits")
        return ResumePoint(path=path, written=written, state=manifest.state)
    if others:
        raise InputError(f"{others[0]}", remedy="restore these values, or use another folder for checkpoints")
    if broken:
        raise InputRejected(
            f"{checkpoints}: all {len(broken)} checkpoints are broken ({broken[0]})",
            remedy="restore one, or remove the folder to start from scratch",
        )
    return None


def verify_init_adapter(folder: str, sha256: str | None) -> Path:
    """Return the weights' file of the adapter to begin from. Raises InputError, and InputRejected for another one."""
    path = Path(folder) / checkpoint.ADAPTER
    try:
        actual = sha256_of(path)
    except OSError as error:
        raise InputError(
            f"{path}: the adapter to begin from cannot be read: {error.strerror}",
            remedy="start the training again, which sends it",
        ) from error
    if actual != sha256:
        raise InputRejected(
            f"{path}: not the adapter of the plan (sha256 {actual[:12]}, expected {str(sha256)[:12]})",
            remedy="remove it and start the training again, which sends it",
        )
    return path


def differences(saved: Identity, current: Identity) -> list[str]:
    """Describe each field that differs between a checkpoint and the current training."""
    changes = []
    for name, before, after in (("model", saved.model, current.model), ("data", saved.data, current.data)):
        if before != after:
            changes.append(f"another {name} (sha256 {before[:12]}, now {after[:12]})")
    for key in sorted(saved.settings.keys() | current.settings.keys()):
        old, new = saved.settings.get(key), current.settings.get(key)
        if old != new:
            changes.append(f"{key} {_format(old)}, now {_format(new)}")
    return changes


def _format(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def record_restart(checkpoints: Path, attempt: int, from_step: int) -> list[Restart]:
    """Add this attempt to the restarts on the disk, and return all restarts of this training.

    Every attempt except the first is a restart, even after an attempt that was killed before it wrote anything.
    Attempts started by hand may all have number 1: then one that resumes is a restart.
    """
    path, before = checkpoints / RESTARTS_FILE, []
    with contextlib.suppress(OSError, ValueError, TypeError):
        before = [schema.from_json(Restart, load) for load in schema.parse(path.read_bytes())]
    first = 1 + max((restart.attempt for restart in before), default=1)
    numbers = range(first, attempt + 1) or ([attempt] if attempt == 1 and from_step else [])
    if numbers:
        before += [Restart(attempt=number, from_step=from_step) for number in numbers]
        _write_restarts(checkpoints, before)
    return before


def record_first_step(checkpoints: Path, restarts: Sequence[Restart], written: float) -> list[Restart]:
    """Add the time since a checkpoint was `written` to the last restart, on the disk, too; None if that fails."""
    last = restarts[-1]
    with contextlib.suppress(OSError):
        path = checkpoints / RESTARTS_FILE
        path.touch()  # the file system's clock, as for the checkpoint
        last = dataclasses.replace(last, since_checkpoint_sec=round(max(0.0, path.stat().st_mtime - written), 1))
    updated = [*restarts[:-1], last]
    _write_restarts(checkpoints, updated)
    return updated


def _write_restarts(checkpoints: Path, restarts: Sequence[Restart]) -> None:
    """Write the restarts, unless the disk has no room for them: the next attempt adds those that are missing."""
    with contextlib.suppress(OSError):
        write_atomic(checkpoints / RESTARTS_FILE, json.dumps(schema.to_json(restarts)).encode())


def check_free_space(checkpoints: Path, needed: int) -> None:
    """Raise InputError if the disk has not enough free space for the checkpoints."""
    free = shutil.disk_usage(checkpoints).free
    if free < needed:
        raise InputError(
            f"{checkpoints}: {format_mib(free)} free, checkpoints need {format_mib(needed)}",
            remedy="free some space, or use a folder on another disk",
        )
