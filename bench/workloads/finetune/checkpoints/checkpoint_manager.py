"""Writing of checkpoints during a training, by rank 0. Steps wait only for a copy on the device, not for the disk."""

import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save

from bench.data.inputs import InputError
from bench.records import schema
from bench.records.atomic_files import sync_folder
from bench.records.paths import ADAPTER_FOLDER
from bench.records.training import CheckpointFacts
from bench.workloads.finetune.checkpoints import checkpoint
from bench.workloads.finetune.checkpoints.checkpoint import TOKENIZER_FILES, History, Manifest, State
from bench.workloads.finetune.checkpoints.resume import Identity
from bench.workloads.finetune.checkpoints.weights import Snapshot, Weights

HEADER = {"format": "pt"}  # required by peft and transformers


class CheckpointManager:
    """A writer of checkpoints, one at a time in a thread. `written` lists the checkpoints that are complete."""

    def __init__(
        self,
        torch: Any,
        folder: Path,
        identity: Identity,
        weights: Weights,
        *,
        world_size: int,
        keep_count: int,
        log: Callable[[str], None],
    ) -> None:
        self.folder, self.weights, self.written = folder, weights, list[CheckpointFacts]()
        self.best: tuple[int, dict[str, Any]] | None = None
        self.newest_step = -1  # the step of the last checkpoint, complete or being written
        self._identity, self._world_size, self._keep_count, self._log = identity, world_size, keep_count, log
        self._snapshot = Snapshot(torch, weights)
        self._thread: threading.Thread | None = None

    def save(self, state: State, history: History, *, wait: bool = False) -> CheckpointFacts | None:
        """Start writing a checkpoint. None if the last one is still being written; `wait` waits for both.

        If the disk is full, the training continues without this checkpoint and the older ones stay.
        """
        start = time.perf_counter()
        if self._thread is not None and self._thread.is_alive() and not wait:
            return None
        self.wait()
        self._snapshot.copy()
        steps, best = history.to_bytes(), self.best
        self.newest_step = state.step
        stalled = time.perf_counter() - start
        facts = CheckpointFacts(step=state.step, seconds=0.0, stall_sec=stalled, bytes=0)
        self._thread = threading.Thread(
            target=self._write, args=(state, steps, best, facts), daemon=True, name="checkpoint"
        )
        self._thread.start()
        if wait:
            self.wait()
        return facts

    def wait(self) -> None:
        """Wait until the current checkpoint is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def set_best(self, step: int) -> None:
        """Store the current adapter as the best so far."""
        self.best = step, {name: tensor.to("cpu", copy=True) for name, tensor in self.weights.adapter.items()}

    def _write(
        self, state: State, steps: bytes, best: tuple[int, dict[str, Any]] | None, facts: CheckpointFacts
    ) -> None:
        start = time.perf_counter()
        adapter, optimizer, counters = self._snapshot.to_host()
        contents = {
            checkpoint.ADAPTER: save(adapter, HEADER),
            checkpoint.ADAPTER_CONFIG: self.weights.config.encode(),
            checkpoint.OPTIMIZER: save(optimizer, {**HEADER, "counters": json.dumps(counters)}),
            checkpoint.STEPS: steps,
            checkpoint.STATE: json.dumps(schema.to_json(state)).encode(),
        }
        if best is not None and best[0] != state.step:
            contents[checkpoint.BEST] = save(best[1], HEADER)
        manifest = Manifest(
            format=checkpoint.FORMAT,
            step=state.step,
            world_size=self._world_size,
            code=self._identity.code,
            model=self._identity.model,
            data=self._identity.data,
            settings=self._identity.settings,
            files={},
        )
        try:
            size = checkpoint.write(self.folder, manifest, contents)
        except OSError as error:
            self._log(f"the checkpoint of step {state.step} was not written: {error.strerror}: {self.folder}")
            return
        checkpoint.prune(self.folder, self._keep_count, state.best_step)
        self.written.append(dataclasses.replace(facts, seconds=time.perf_counter() - start, bytes=size))


def load_checkpoint(folder: Path, weights: Weights) -> dict[str, Any] | None:
    """Load a checkpoint into the weights; return the best adapter if it is a different one. Raises InputError."""
    try:
        with safe_open(folder / checkpoint.OPTIMIZER, "pt") as file:
            counters = json.loads((file.metadata() or {})["counters"])
        weights.load(load_file(folder / checkpoint.ADAPTER), load_file(folder / checkpoint.OPTIMIZER), counters)
        best = folder / checkpoint.BEST
        return dict(load_file(best)) if best.exists() else None
    except (KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: does not fit this model: {' '.join(str(error).split())}") from error


def write_adapter(out: Path, adapter: dict[str, Any], config: str, model: Path) -> dict[str, int]:
    """Write `out`/adapter atomically, for plain peft, with the tokenizer; return sizes by name. Raises OSError."""
    part, folder = out / f".{ADAPTER_FOLDER}.part", out / ADAPTER_FOLDER
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    # save_file is not used because it does not raise OSError if the disk is full.
    (part / checkpoint.ADAPTER).write_bytes(save(adapter, HEADER))
    (part / checkpoint.ADAPTER_CONFIG).write_text(config, encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, part / name)
    for path in part.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(part)
    os.rename(part, folder)
    sync_folder(out)
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
