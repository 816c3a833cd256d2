"""Checkpoints on the disk: a folder each, written beside the training, sealed by a manifest that is written last.

    step-00000123/
        adapter_model.safetensors, adapter_config.json     the adapter: plain peft loads the folder
        optimizer.safetensors                              the optimizer's state; its counters in the file's metadata
        best_adapter.safetensors                           of the step with the lowest held-out loss, where that is
                                                           another one
        steps.f64                                          `History`
        state.json                                         the rest: see `State`
        MANIFEST.json                                      sha256 and size of each, and what they were made with

The folder is made under another name, its files and itself are on the disk before it is renamed: a checkpoint is whole
or not there. Each is whole by itself, so that one folder is all that another machine needs to go on.

This module imports the standard library alone.
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
from bench.records.checksummed import ResultError, read_sealed, write_sealed
from bench.records.paths import MANIFEST_FILE
from bench.records.training import CheckpointFacts, Evaluation, TrainedSteps

FORMAT = 1
MANIFEST, STATE, STEPS = MANIFEST_FILE, "state.json", "steps.f64"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# What is kept with an adapter: what the training reads, and what other programs may.
TOKENIZER_FILES = (*model_folder.TOKENIZER_FILES, "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt")
OPTIMIZER, BEST = "optimizer.safetensors", "best_adapter.safetensors"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class FileSum:
    """A file's sha256 and size."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds, and what it was made with: everything that decides what the next steps compute.

    `settings` are those of the trial that a checkpoint cannot outlive, `code` is the digest of the bench's sources.
    """

    format: int
    step: int
    world_size: int
    code: str
    model: str
    data: str
    settings: dict[str, Any]
    files: dict[str, FileSum]


@dataclass(frozen=True, kw_only=True)
class State:
    """The rest of a training after `step` steps. The position in the data is the step; random numbers follow from it.

    `seconds` over all attempts; `first_losses` are the held-out examples' losses before training, with which later ones
    are compared; `best_step` is that of the lowest held-out loss so far, None before one is known. `answers` are those
    before training to the texts `asked`, which earlier versions did not keep.
    """

    step: int
    seconds: float
    evaluations: list[Evaluation] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    best_step: int | None = None
    answers: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    checkpoints: list[CheckpointFacts] = field(default_factory=list)


class History:
    """What each step measured, in columns of float64: written in a moment, however many steps there are."""

    def __init__(self, content: bytes = b"", steps: int = 0) -> None:
        """Raises ValueError where the content is not that of so many steps."""
        names = [each.name for each in dataclasses.fields(TrainedSteps)]
        self.columns = {name: array("d") for name in names}
        if len(content) != steps * 8 * len(names):
            raise ValueError(f"{len(content)} bytes are not {steps} steps in {len(names)} columns")
        for place, column in enumerate(self.columns.values()):
            column.frombytes(content[place * steps * 8 : (place + 1) * steps * 8])

    def add(self, **values: float) -> None:
        for name, column in self.columns.items():
            column.append(values[name])

    def content(self) -> bytes:
        return b"".join(column.tobytes() for column in self.columns.values())

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each step, by the columns' names."""
        columns = vars(self.record())
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))

    def record(self) -> TrainedSteps:
        columns: dict[str, Any] = {name: list(column) for name, column in self.columns.items()}
        for name in ("step", "targets", "tokens", "samples"):
            columns[name] = [int(value) for value in columns[name]]
        return TrainedSteps(**columns)


class BrokenCheckpoint(ValueError):
    """A checkpoint that cannot be trusted; the message names it and says why."""


def folder_of(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08}"


def listed(checkpoints: Path) -> list[Path]:
    """Every folder that has a checkpoint's name, the newest first."""
    named = [path for path in checkpoints.iterdir() if _NAME.fullmatch(path.name)] if checkpoints.is_dir() else []
    return sorted(named, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def verified(checkpoint: Path) -> Manifest:
    """The manifest, after every file has been compared with it. Raises Broken."""
    try:
        manifest = read_sealed(Manifest, checkpoint / MANIFEST, "checkpoint")
    except ResultError as error:
        raise BrokenCheckpoint(str(error)) from None
    if manifest.format != FORMAT:
        raise BrokenCheckpoint(f"{checkpoint}: written in format {manifest.format}; this version reads {FORMAT}")
    if folder_of(checkpoint.parent, manifest.step) != checkpoint:
        raise BrokenCheckpoint(f"{checkpoint}: its manifest is of step {manifest.step}")
    for name, expected in manifest.files.items():
        path = checkpoint / name
        try:
            size = path.stat().st_size
            if Path(name).name != name or size != expected.bytes:
                raise BrokenCheckpoint(
                    f"{path}: {size:,} bytes, its manifest says {expected.bytes:,}; it was cut or changed"
                )
            if sha256_of(path) != expected.sha256:
                raise BrokenCheckpoint(f"{path}: its sha256 does not match its manifest; it was changed or damaged")
        except OSError as error:
            raise BrokenCheckpoint(f"{path}: cannot be read: {error.strerror}") from None
    return manifest


def write(checkpoints: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> int:
    """Write a checkpoint whole, or not at all; its bytes. `manifest.files` is filled in here. Raises OSError."""
    place = folder_of(checkpoints, manifest.step)
    part = Path(tempfile.mkdtemp(dir=checkpoints, prefix=f".{place.name}.part-"))
    try:
        sums = {}
        for name, content in contents.items():
            _write_through(part / name, content)
            sums[name] = FileSum(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        part.chmod(0o755)  # mkdtemp's 0700 would hide it on a shared volume
        write_sealed(part / MANIFEST, "checkpoint", Manifest(**{**vars(manifest), "files": sums}))
        if place.exists():  # a broken one, or one that a resumed training made again
            away = Path(tempfile.mkdtemp(dir=checkpoints, prefix=f".{place.name}.part-"))
            os.rename(place, away / "replaced")
            os.rename(part, place)
            shutil.rmtree(away, ignore_errors=True)
        else:
            os.rename(part, place)
        sync_folder(checkpoints)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return sum(each.bytes for each in sums.values())


def prune(checkpoints: Path, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` and that of step `best`. What cannot be removed stays."""
    for path in listed(checkpoints)[keep:]:
        if best is None or path != folder_of(checkpoints, best):
            away = checkpoints / f".{path.name}.part-old"  # never half a checkpoint under its own name
            with contextlib.suppress(OSError):
                os.rename(path, away)
            shutil.rmtree(away, ignore_errors=True)


def clear_parts(checkpoints: Path) -> None:
    """Remove what an attempt that was killed had begun to write. Only for the one process that writes here."""
    for path in checkpoints.glob(".step-*.part-*"):
        shutil.rmtree(path, ignore_errors=True)


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
