"""Adapters and optimizer state, copied on their device for a checkpoint.

A copy is made on the device between two steps, into memory allocated before the first one; another thread copies it to
the host. Paged state is in memory that host and device share: on CUDA it is copied through a device view, because
reading it on the host would move its pages there and back.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

CONSTANT_STATE = ("qmap1", "qmap2")  # bitsandbytes' tables, shared by all parameters


class Weights:
    """The adapters of a peft model and the state of their optimizer, by name."""

    def __init__(self, stack: Any, step: Any, peft_model: Any) -> None:
        self._torch, self._optimizer = stack.torch, step.optimizer
        self.adapter: dict[str, Any] = {
            name: tensor.detach()
            for name, tensor in stack.peft.get_peft_model_state_dict(peft_model, save_embedding_layers=False).items()
        }
        self.config = adapter_config(peft_model)
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

    def counters(self) -> dict[str, int]:
        """Return the state entries that are plain numbers."""
        return {name: owner[key] for name, owner, key in self._entries() if not self._torch.is_tensor(owner[key])}

    def bytes(self) -> int:
        tensors = [*self.adapter.values(), *self.state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def load(self, adapter: Mapping[str, Any], state: Mapping[str, Any], counters: Mapping[str, int]) -> None:
        """Copy saved tensors into these weights. Raises KeyError or RuntimeError if names or shapes differ."""
        for current, saved in ((self.adapter, adapter), (self.state, state)):
            if current.keys() != saved.keys():
                raise KeyError(f"names differ from this model's: {min(current.keys() ^ saved.keys())}")
            for name, tensor in current.items():
                if tensor.shape != saved[name].shape:
                    raise KeyError(f"{name}: {tuple(saved[name].shape)}, this model has {tuple(tensor.shape)}")
                tensor.copy_(saved[name])
        self.set_counters(counters)
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()

    def to_flat(self) -> Any:
        """Return all tensors as one byte tensor on the host, for the other ranks."""
        tensors = (*self.adapter.values(), *self.state.values())
        parts = [tensor.to("cpu").contiguous().view(-1).view(self._torch.uint8) for tensor in tensors]
        return self._torch.cat(parts)

    def load_flat(self, flat: Any) -> None:
        """Load the result of `to_flat`."""
        start = 0
        for tensor in (*self.adapter.values(), *self.state.values()):
            size = tensor.numel() * tensor.element_size()
            # A copy, because a slice need not be aligned for floats.
            part = flat[start : start + size].clone()
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
            start += size

    def set_counters(self, counters: Mapping[str, int]) -> None:
        for name, owner, key in self._entries():
            if not self._torch.is_tensor(owner[key]):
                owner[key] = counters[name]

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
    """Buffers for one copy of the weights, on their devices and on the host."""

    def __init__(self, torch: Any, weights: Weights) -> None:
        self._torch, self._weights = torch, weights
        self._sources = {f"a/{name}": tensor for name, tensor in weights.adapter.items()}
        self._sources |= {f"s/{name}": tensor for name, tensor in weights.state.items()}
        self._copies = {name: torch.empty_like(tensor) for name, tensor in self._sources.items()}
        self._counters: dict[str, int] = {}
        self._is_cuda = any(tensor.is_cuda for tensor in self._copies.values())
        self._host = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            for name, tensor in self._copies.items()
            if tensor.is_cuda
        }
        self._copied = torch.cuda.Event() if self._is_cuda else None
        self._stream = torch.cuda.Stream() if self._is_cuda else None

    def copy(self) -> None:
        """Copy the weights on their devices, after all queued work."""
        for is_cuda in (False, True):
            names = [name for name, tensor in self._sources.items() if bool(tensor.is_cuda) is is_cuda]
            if names:
                self._torch._foreach_copy_([self._copies[n] for n in names], [self._sources[n] for n in names])
        self._counters = self._weights.counters()
        if self._copied is not None:
            self._copied.record()

    def to_host(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
        """Return (adapter, state, counters) of the last copy; thread-safe while the training continues."""
        copies = dict(self._copies)
        if self._stream is not None:
            self._stream.wait_event(self._copied)
            with self._torch.cuda.stream(self._stream):
                for name, buffer in self._host.items():
                    buffer.copy_(self._copies[name], non_blocking=True)
            self._stream.synchronize()
            copies |= self._host
        parts = {kind: {n[2:]: t for n, t in copies.items() if n.startswith(f"{kind}/")} for kind in "as"}
        return parts["a"], parts["s"], dict(self._counters)


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
