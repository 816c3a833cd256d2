"""Checkpoints on the disk: one folder each, completed by a manifest that is written last.

    step-00000123/
        adapter_model.safetensors, adapter_config.json     the adapter: plain peft loads the folder
        optimizer.safetensors                              the optimizer's state; its counters in the file's metadata
        best_adapter.safetensors                           the adapter with the lowest held-out loss, if it is of
                                                           another step
        steps.f64                                          `History`
        state.json                                         all other state: see `State`
        MANIFEST.json                                      sha256 and size of each file, and the inputs' digests

The folder is created under a temporary name, and renamed after its files and itself are synced: a checkpoint is either
complete or absent. Each is self-contained: another machine needs only this folder to resume.

This module imports only the standard library.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.data import model_folder
from bench.records.atomic_files import sha256_of, sync_folder
from bench.records.checksummed import ResultError, read_checksummed, write_checksummed
from bench.records.paths import MANIFEST_FILE
from bench.records.score import TrainingTime
from bench.records.training import Evaluation, TrainedSteps

MANIFEST, STATE, STEPS = MANIFEST_FILE, "state.json", "steps.f64"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# Tokenizer files copied next to an adapter: those that the training reads, and those that other programs may read.
TOKENIZER_FILES = (*model_folder.TOKENIZER_FILES, "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt")
OPTIMIZER, BEST = "optimizer.safetensors", "best_adapter.safetensors"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class FileSum:
    """The sha256 and size of a file."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Identity:
    """All inputs that determine the next steps' results: digests of model, data and the bench's sources, and settings.

    `settings` are those of the trial that must not change on resume.
    """

    model: str
    data: str
    code: str
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint's step and files, and the identity of its training."""

    step: int
    identity: Identity
    files: dict[str, FileSum]


@dataclass(frozen=True, kw_only=True)
class State:
    """The remaining state of a training after `step` steps; the step determines data position and random numbers.

    `seconds` and `time` are summed over all attempts. `first_losses` are the held-out examples' losses before training,
    for comparison with later ones. `best_step` has the lowest held-out loss or the highest score so far, None before
    the first evaluation.
    """

    step: int
    seconds: float
    evaluations: list[Evaluation] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    best_step: int | None = None
    time: TrainingTime = field(default_factory=TrainingTime)


class History:
    """The measurements of each step in float64 columns, which are fast to write for any number of steps."""

    def __init__(self, content: bytes = b"", steps: int = 0) -> None:
        """Parse `to_bytes`' result. Raises ValueError if its size does not match `steps`."""
        names = [each.name for each in dataclasses.fields(TrainedSteps)]
        self.columns = {name: array("d") for name in names}
        if len(content) != steps * 8 * len(names):
            raise ValueError(f"{len(content)} bytes are not {steps} steps in {len(names)} columns")
        for index, column in enumerate(self.columns.values()):
            column.frombytes(content[index * steps * 8 : (index + 1) * steps * 8])

    def add(self, **values: float) -> None:
        for name, column in self.columns.items():
            column.append(values[name])

    def to_bytes(self) -> bytes:
        return b"".join(column.tobytes() for column in self.columns.values())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one dict per step, with the columns' names as keys."""
        columns = vars(self.to_record())
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))

    def to_record(self) -> TrainedSteps:
        columns: dict[str, Any] = {name: list(column) for name, column in self.columns.items()}
        for name in ("step", "targets", "tokens", "samples"):
            columns[name] = [int(value) for value in columns[name]]
        return TrainedSteps(**columns)


class BrokenCheckpoint(ValueError):
    """Error for a checkpoint that is damaged or unreadable; the message has its path and the reason."""


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08}"


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Return all folders with a checkpoint's name, newest first."""
    paths = [path for path in checkpoints.iterdir() if _NAME.fullmatch(path.name)] if checkpoints.is_dir() else []
    return sorted(paths, key=_step_of, reverse=True)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def verify(checkpoint: Path) -> Manifest:
    """Compare every file with the manifest and return it. Raises BrokenCheckpoint."""
    try:
        manifest = read_checksummed(Manifest, checkpoint / MANIFEST, "checkpoint")
    except ResultError as error:
        raise BrokenCheckpoint(str(error)) from error
    if checkpoint_folder(checkpoint.parent, manifest.step) != checkpoint:
        raise BrokenCheckpoint(f"{checkpoint}: its manifest belongs to step {manifest.step}")
    for name, expected in manifest.files.items():
        path = checkpoint / name
        try:
            size = path.stat().st_size
            if Path(name).name != name or size != expected.bytes:
                raise BrokenCheckpoint(
                    f"{path}: {size:,} bytes instead of the manifest's {expected.bytes:,}; it was truncated or changed"
                )
            if sha256_of(path) != expected.sha256:
                raise BrokenCheckpoint(f"{path}: its sha256 does not match its manifest; it was changed or damaged")
        except OSError as error:
            raise BrokenCheckpoint(f"{path}: cannot be read: {error.strerror}") from error
    return manifest


def write(checkpoints: Path, step: int, identity: Identity, contents: Mapping[str, bytes]) -> None:
    """Write a checkpoint atomically. Raises OSError."""
    folder = checkpoint_folder(checkpoints, step)
    part = Path(tempfile.mkdtemp(dir=checkpoints, prefix=f".{folder.name}.part-"))
    try:
        sums = {}
        for name, content in contents.items():
            _write_synced(part / name, content)
            sums[name] = FileSum(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        part.chmod(0o755)  # mkdtemp's 0700 would hide it on a shared volume
        write_checksummed(part / MANIFEST, "checkpoint", Manifest(step=step, identity=identity, files=sums))
        if folder.exists():  # a broken checkpoint, or one of an earlier attempt
            replaced = Path(tempfile.mkdtemp(dir=checkpoints, prefix=f".{folder.name}.part-"))
            os.rename(folder, replaced / "replaced")
            os.rename(part, folder)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            os.rename(part, folder)
        sync_folder(checkpoints)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def prune(checkpoints: Path, step: int, keep: int, best: int | None) -> None:
    """Remove checkpoints before `step`, except the newest `keep` up to it and that of step `best`. Ignores errors.

    Later ones are broken or of other settings: counted, they could displace the only complete one.
    """
    for path in [path for path in list_checkpoints(checkpoints) if _step_of(path) <= step][keep:]:
        if best is None or path != checkpoint_folder(checkpoints, best):
            replaced = checkpoints / f".{path.name}.part-old"  # no partial checkpoint may have a checkpoint's name
            with contextlib.suppress(OSError):
                os.rename(path, replaced)
            shutil.rmtree(replaced, ignore_errors=True)


def clear_parts(checkpoints: Path) -> None:
    """Remove partial checkpoints of a killed attempt. Only for the one process that writes here."""
    for path in checkpoints.glob(".step-*.part-*"):
        shutil.rmtree(path, ignore_errors=True)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
