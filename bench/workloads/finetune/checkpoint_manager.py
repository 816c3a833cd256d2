"""Writing of checkpoints during a training, by rank 0. Steps wait only for a copy on the device, not for the disk.

The adapters and the optimizer's state are copied on the device between two steps, into memory allocated before the
first one; another thread copies it to the host. Paged state is in memory that host and device share: on CUDA it is
copied through a device view, because reading it on the host would move its pages there and back.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from bench.data.inputs import InputError
from bench.data.model_folder import TEMPLATE_FILE
from bench.qlora.base_models import trained_base
from bench.records.paths import ADAPTER_FOLDER
from bench.records.training import TrainedSteps
from bench.workloads.finetune import checkpoint, resume
from bench.workloads.finetune.checkpoint import TOKENIZER_FILES, Identity, State

MAX_WAIT_SEC = 600.0
HEADER = {"format": "pt"}  # required by peft and transformers
CONSTANT_STATE = ("qmap1", "qmap2")  # bitsandbytes' tables, shared by all parameters


class Weights:
    """The adapters of a peft model and the state of their optimizer, by name."""

    def __init__(self, stack: Any, step: Any, peft_model: Any) -> None:
        self._torch, self._optimizer = stack.torch, step.optimizer
        self.adapter: dict[str, Any] = {
            name: tensor.detach()
            for name, tensor in stack.peft.get_peft_model_state_dict(peft_model, save_embedding_layers=False).items()
        }
        self.config, self.base = adapter_config(peft_model), trained_base(peft_model)
        self._make_state()

    def _make_state(self) -> None:
        """Make the optimizer create its state, by a step that changes no weights, and reset the state to zero."""
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = 0.0
        self._optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        self.state: dict[str, Any] = {}
        for name, owner, key in self._entries():
            if self._torch.is_tensor(owner[key]):
                self.state[name] = self._device_view(owner[key])
                if key not in CONSTANT_STATE:
                    self.state[name].zero_()
            else:
                owner[key] = 0

    def _entries(self) -> Any:
        """Yield (name, the parameter's state dict, its key) for each entry of the optimizer's state."""
        number = 0
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                owner = self._optimizer.state[parameter]
                for key in sorted(owner):
                    if key not in CONSTANT_STATE:
                        yield f"{number:05}.{key}", owner, key
                number += 1

    def copy_adapter(self) -> dict[str, Any]:
        """Copy the adapter's tensors to the host."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.adapter.items()}

    def counters(self) -> dict[str, int]:
        """Return the state entries that are plain numbers."""
        return {name: owner[key] for name, owner, key in self._entries() if not self._torch.is_tensor(owner[key])}

    def bytes(self) -> int:
        tensors = [*self.adapter.values(), *self.state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def load(self, adapter: Mapping[str, Any], state: Mapping[str, Any], counters: Mapping[str, int]) -> None:
        """Copy saved tensors into these weights. Raises KeyError or RuntimeError if names or shapes differ."""
        _copy_tensors(adapter, self.adapter)
        _copy_tensors(state, self.state)
        for name, owner, key in self._entries():
            if not self._torch.is_tensor(owner[key]):
                owner[key] = counters[name]
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()

    def to_host(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
        """Return copies on the host that `load` takes."""
        return (
            self.copy_adapter(),
            {name: each.to("cpu", copy=True) for name, each in self.state.items()},
            self.counters(),
        )

    def digest(self) -> str:
        """Return the sha256 of adapter and state."""
        digest = hashlib.sha256()
        for tensor in (*self.adapter.values(), *self.state.values()):
            digest.update(tensor.to("cpu").contiguous().view(-1).view(self._torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _device_view(self, tensor: Any) -> Any:
        if not getattr(tensor, "is_paged", False) or not self._torch.cuda.is_available():
            return tensor
        return self._torch.as_tensor(_SharedMemory(tensor), device="cuda")


class _SharedMemory:
    """A tensor in memory shared by host and device, with CUDA's array interface."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor  # keeps the memory alive
        dtype = {1: "|u1", 4: "<f4"}[tensor.element_size()]
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": dtype,
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


class Snapshot:
    """One copy of the weights, on their devices."""

    def __init__(self, torch: Any, weights: Weights) -> None:
        self._torch, self._weights = torch, weights
        self._adapter, self._state = (
            {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
            for tensors in (weights.adapter, weights.state)
        )
        self._counters: dict[str, int] = {}
        is_cuda = any(tensor.is_cuda for tensor in self._adapter.values())
        self._copied = torch.cuda.Event() if is_cuda else None
        self._stream = torch.cuda.Stream() if is_cuda else None

    def copy(self) -> None:
        """Copy the weights on their devices, after all queued work."""
        for sources, copies in ((self._weights.adapter, self._adapter), (self._weights.state, self._state)):
            for name, tensor in sources.items():
                copies[name].copy_(tensor)
        self._counters = self._weights.counters()
        if self._copied is not None:
            self._copied.record()

    def to_host(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
        """Return (adapter, state, counters) of the last copy; thread-safe while the training continues."""
        if self._stream is not None:
            self._stream.wait_event(self._copied)
        with self._torch.cuda.stream(self._stream):  # without a stream it does nothing
            adapter, state = (
                {name: tensor.to("cpu") for name, tensor in copies.items()} for copies in (self._adapter, self._state)
            )
        return adapter, state, self._counters


def adapter_config(peft_model: Any) -> str:
    """Return adapter_config.json's text, with sets sorted, so that it is the same in every process.

    The base is an absolute path: other tools take a relative one for the name of a repository on the hub.
    """
    (config,) = peft_model.peft_config.values()
    document = {**config.to_dict(), "inference_mode": True}
    base = document.get("base_model_name_or_path")
    if isinstance(base, str) and os.path.isdir(base):  # noqa: PTH112 - the path is text in the file
        document["base_model_name_or_path"] = os.path.abspath(base)  # noqa: PTH100 - without following links
    plain = {
        key: sorted(value) if isinstance(value, set) else getattr(value, "value", value)
        for key, value in document.items()
    }
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


class CheckpointManager:
    """A writer of checkpoints, one at a time in a thread. `written_step` is the newest that is complete."""

    def __init__(
        self,
        torch: Any,
        folder: Path,
        identity: Identity,
        weights: Weights,
        *,
        keep_count: int,
        log: Callable[[str], None],
        on_wait: Callable[[], None],
    ) -> None:
        self.folder, self.weights = folder, weights
        self.written_step: int | None = None
        self.best: dict[str, Any] | None = None  # the adapter of the state's best step
        self.newest_step = -1  # the step of the last checkpoint, complete or being written
        self._identity, self._keep_count = identity, keep_count
        self._log, self._on_wait = log, on_wait
        self._snapshot = Snapshot(torch, weights)
        self._thread: threading.Thread | None = None

    def save(self, state: State, *, wait: bool = False) -> bool:
        """Start writing a checkpoint. False if the last one is still being written; `wait` waits for both.

        If the disk is full, the training continues without this checkpoint and the older ones stay.
        """
        if self._thread is not None and self._thread.is_alive() and not wait:
            return False
        self.wait()
        self._snapshot.copy()
        columns = {name: list(column) for name, column in vars(state.steps).items()}  # the training goes on
        state = dataclasses.replace(state, steps=TrainedSteps(**columns))
        self.newest_step = state.step
        self._thread = threading.Thread(target=self._write, args=(state, self.best), daemon=True, name="checkpoint")
        self._thread.start()
        if wait:
            self.wait()
        return True

    def wait(self) -> None:
        """Wait until the current checkpoint is written. Calls `on_wait` for MAX_WAIT_SEC: a slow disk is not a hang."""
        deadline = time.monotonic() + MAX_WAIT_SEC
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(1.0)
            if time.monotonic() < deadline:
                self._on_wait()
        self._thread = None

    def set_best(self) -> None:
        """Store the current adapter as the best so far."""
        self.best = self.weights.copy_adapter()

    def _write(self, state: State, best: dict[str, Any] | None) -> None:
        adapter, optimizer, counters = self._snapshot.to_host()
        contents = {
            checkpoint.ADAPTER: save(adapter, HEADER),
            checkpoint.ADAPTER_CONFIG: self.weights.config.encode(),
            checkpoint.OPTIMIZER: save(optimizer, {**HEADER, "counters": json.dumps(counters)}),
        }
        if best is not None and state.best_step != state.step:
            contents[checkpoint.BEST] = save(best, HEADER)
        try:
            checkpoint.write(self.folder, self._identity, state, contents)
        except OSError as error:
            self.newest_step = -1
            self._log(f"the checkpoint of step {state.step} was not written: {error.strerror}: {self.folder}")
            return
        checkpoint.prune(self.folder, state.step, self._keep_count, state.best_step)
        self.written_step = state.step


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


def load_init_adapter(folder: str, sha256: str | None, weights: Weights) -> None:
    """Copy an adapter's weights into these. Raises InputError if names or shapes differ."""
    path = resume.verify_init_adapter(folder, sha256)
    try:
        _copy_tensors(load_file(path), weights.adapter)
    except KeyError as error:
        remedy = "set train.lora_targets and train.lora_rank to the adapter's, or name another adapter"
        raise InputError(f"{path}: {error.args[0]}", remedy=remedy) from error
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{path}: not safetensors: {error}", remedy="name another adapter") from error


def _copy_tensors(saved: Mapping[str, Any], into: Mapping[str, Any]) -> None:
    """Copy tensors by name. Raises KeyError for a name or shape that differs."""
    if differing := into.keys() ^ saved.keys():
        raise KeyError(f"{min(differing)}: only in {'it' if min(differing) in saved else 'the training'}")
    for name, tensor in into.items():
        if tensor.shape != saved[name].shape:
            raise KeyError(f"{name}: {tuple(saved[name].shape)}, the training has {tuple(tensor.shape)}")
        tensor.copy_(saved[name])


def write_adapter(
    out: Path, adapter: dict[str, Any], weights: Weights, model: Path, chat_template: str | None = None
) -> dict[str, int]:
    """Write `out`/adapter atomically, for plain peft, with the base's record, tokenizer and the training's template.

    Returns sizes by name. Raises OSError, and then leaves nothing.
    """
    folder = out / ADAPTER_FOLDER
    checkpoint.remove(folder)
    try:
        with checkpoint.new_folder(folder) as part:
            # save_file is not used because it does not raise OSError if the disk is full.
            (part / checkpoint.ADAPTER).write_bytes(save(adapter, HEADER))
            (part / checkpoint.ADAPTER_CONFIG).write_text(weights.config, encoding="utf-8")
            weights.base.write(part)
            for name in TOKENIZER_FILES:
                if (model / name).is_file():
                    shutil.copyfile(model / name, part / name)
            if chat_template is not None:
                (part / TEMPLATE_FILE).write_text(chat_template, encoding="utf-8")
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
