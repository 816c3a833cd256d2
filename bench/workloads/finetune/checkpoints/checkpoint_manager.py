"""Keeps checkpoints while the training goes on: rank 0's. The steps wait for a copy on the device, and for no disk."""

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

HEADER = {"format": "pt"}  # what peft and transformers look for


class CheckpointManager:
    """One thread writes one checkpoint at a time. `written` are the facts of those that lie whole on the disk."""

    def __init__(
        self,
        torch: Any,
        folder: Path,
        identity: Identity,
        weights: Weights,
        *,
        world_size: int,
        keep: int,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.weights, self.written = folder, weights, list[CheckpointFacts]()
        self.best: tuple[int, dict[str, Any]] | None = None
        self.newest = -1  # the step of the last one that was taken
        self._identity, self._world_size, self._keep, self._say = identity, world_size, keep, say
        self._snapshot = Snapshot(torch, weights)
        self._thread: threading.Thread | None = None

    def take(self, state: State, history: History, *, wait: bool = False) -> CheckpointFacts | None:
        """Begin a checkpoint of this moment. None where the one before is still being written; `wait` waits for both.

        A disk that is full costs the checkpoint and not the training: the older ones stay.
        """
        start = time.perf_counter()
        if self._thread is not None and self._thread.is_alive() and not wait:
            return None
        self.finish()
        self._snapshot.take()
        steps, best = history.content(), self.best
        self.newest = state.step
        stalled = time.perf_counter() - start
        facts = CheckpointFacts(step=state.step, seconds=0.0, stall_sec=stalled, bytes=0)
        self._thread = threading.Thread(
            target=self._write, args=(state, steps, best, facts), daemon=True, name="checkpoint"
        )
        self._thread.start()
        if wait:
            self.finish()
        return facts

    def finish(self) -> None:
        """Until the checkpoint that is being written is there."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def keep_best(self, step: int) -> None:
        """The adapter of this moment is the best so far."""
        self.best = step, {name: tensor.to("cpu", copy=True) for name, tensor in self.weights.adapter.items()}

    def _write(
        self, state: State, steps: bytes, best: tuple[int, dict[str, Any]] | None, facts: CheckpointFacts
    ) -> None:
        start = time.perf_counter()
        adapter, optimizer, counters = self._snapshot.on_host()
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
            self._say(f"the checkpoint of step {state.step} was not written: {error.strerror}: {self.folder}")
            return
        checkpoint.prune(self.folder, self._keep, state.best_step)
        self.written.append(dataclasses.replace(facts, seconds=time.perf_counter() - start, bytes=size))


def restore(place: Path, weights: Weights) -> dict[str, Any] | None:
    """Make the weights those of a checkpoint; the best adapter where it is another one. Raises InputError."""
    try:
        with safe_open(place / checkpoint.OPTIMIZER, "pt") as file:
            counters = json.loads((file.metadata() or {})["counters"])
        weights.restore(load_file(place / checkpoint.ADAPTER), load_file(place / checkpoint.OPTIMIZER), counters)
        best = place / checkpoint.BEST
        return dict(load_file(best)) if best.exists() else None
    except (KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{place}: does not fit this model: {' '.join(str(error).split())}") from None


def write_adapter(out: Path, adapter: dict[str, Any], config: str, model: Path) -> dict[str, int]:
    """Write `out`/adapter whole: what plain peft loads, and the tokenizer's files. Sizes by name. Raises OSError."""
    part, place = out / f".{ADAPTER_FOLDER}.part", out / ADAPTER_FOLDER
    for old in (part, place):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    # Not by save_file: its error for a full disk is no OSError.
    (part / checkpoint.ADAPTER).write_bytes(save(adapter, HEADER))
    (part / checkpoint.ADAPTER_CONFIG).write_text(config, encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, part / name)
    for path in part.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(part)
    os.rename(part, place)
    sync_folder(out)
    return {path.name: path.stat().st_size for path in sorted(place.iterdir())}
