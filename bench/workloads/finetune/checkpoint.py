"""Checkpoints on the disk: one folder each, completed by a manifest that is written last.

    step-00000123/
        adapter_model.safetensors, adapter_config.json     the adapter: plain peft loads the folder
        optimizer.safetensors                              the optimizer's state; its counters in the file's metadata
        best_adapter.safetensors                           the adapter with the lowest held-out loss, if it is of
                                                           another step
        steps.json                                         the steps so far, which may be many
        first_score.json                                   the answers before the training, which may be long
        MANIFEST.json                                      sha256 and size of each file, the inputs' digests, and all
                                                           other state: see `State`

Each is self-contained: another machine needs only this folder to resume.

This module imports only the standard library.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.data import model_folder
from bench.records import schema
from bench.records.atomic_files import sha256_of, sync_folder
from bench.records.checksummed import ResultError, read_checksummed, write_checksummed
from bench.records.paths import MANIFEST_FILE
from bench.records.score import TrainingTime
from bench.records.training import Evaluation, TrainedSteps
from bench.workloads.finetune.score import ScoredAnswers

MANIFEST = MANIFEST_FILE
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# Tokenizer files copied next to an adapter: those that the training reads, and those that other programs may read.
TOKENIZER_FILES = (*model_folder.TOKENIZER_FILES, "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt")
OPTIMIZER, BEST = "optimizer.safetensors", "best_adapter.safetensors"
STEPS, FIRST_SCORE = "steps.json", "first_score.json"  # a manifest is limited in size
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
class State:
    """The remaining state of a training after `step` steps; the step determines data position and random numbers.

    `steps` grows in place. `seconds` and `time` are summed over all attempts. `first_losses` and `first_score` are the
    held-out examples' losses and the score before training, for comparison with later ones. `best_step` has the lowest
    held-out loss so far, None before the first evaluation.
    """

    step: int
    seconds: float
    steps: TrainedSteps = field(default_factory=TrainedSteps)
    evaluations: list[Evaluation] = field(default_factory=list)
    first_losses: list[float] = field(default_factory=list)
    best_step: int | None = None
    time: TrainingTime = field(default_factory=TrainingTime)
    first_score: ScoredAnswers | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files and the state of a checkpoint, and the identity of its training."""

    identity: Identity
    files: dict[str, FileSum]
    state: State


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
    if checkpoint_folder(checkpoint.parent, manifest.state.step) != checkpoint:
        raise BrokenCheckpoint(f"{checkpoint}: its manifest belongs to step {manifest.state.step}")
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
    try:
        steps = TrainedSteps(**json.loads((checkpoint / STEPS).read_bytes()))
        score = json.loads((checkpoint / FIRST_SCORE).read_bytes()) if FIRST_SCORE in manifest.files else None
        first_score = None if score is None else schema.from_json(ScoredAnswers, score)
    except (OSError, ValueError, TypeError) as error:
        raise BrokenCheckpoint(f"{checkpoint / STEPS}, {FIRST_SCORE}: cannot be read") from error
    return replace(manifest, state=replace(manifest.state, steps=steps, first_score=first_score))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make a folder under a temporary name, which replaces `folder` after the block, once its files are synced.

    Raises OSError. After an error nothing of it is left; a killed process leaves `partial(folder)`.
    """
    part = partial(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        for path in part.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(part)
        remove(folder)  # a broken checkpoint, or one of an earlier attempt
        os.rename(part, folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.part")


def remove(folder: Path) -> None:
    """Remove a folder, first its name: what is left of a checkpoint must not look like one. Ignores errors."""
    replaced = partial(folder).with_suffix(".part-old")
    with contextlib.suppress(OSError):
        os.rename(folder, replaced)
    shutil.rmtree(replaced, ignore_errors=True)


def write(checkpoints: Path, identity: Identity, state: State, contents: Mapping[str, bytes]) -> None:
    """Write a checkpoint, which is complete or absent. Raises OSError."""
    contents = {**contents, STEPS: json.dumps(vars(state.steps)).encode()}  # a record of 100,000 steps takes seconds
    if state.first_score is not None:
        contents[FIRST_SCORE] = json.dumps(schema.to_json(state.first_score)).encode()
    with new_folder(checkpoint_folder(checkpoints, state.step)) as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        sums = {
            name: FileSum(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
            for name, content in contents.items()
        }
        manifest = Manifest(identity=identity, files=sums, state=replace(state, steps=TrainedSteps(), first_score=None))
        write_checksummed(folder / MANIFEST, "checkpoint", manifest)


def prune(checkpoints: Path, step: int, keep: int, best: int | None) -> None:
    """Remove checkpoints before `step`, except the newest `keep` up to it and that of step `best`. Ignores errors.

    Later ones are broken or of other settings: counted, they could displace the only complete one.
    """
    for path in [path for path in list_checkpoints(checkpoints) if _step_of(path) <= step][keep:]:
        if best is None or path != checkpoint_folder(checkpoints, best):
            remove(path)


def clear_parts(checkpoints: Path) -> None:
    """Remove partial checkpoints of a killed attempt. Only for the one process that writes here."""
    for path in checkpoints.glob(".step-*.part*"):
        shutil.rmtree(path, ignore_errors=True)
