"""What a checkpoint holds of the model: the adapters and the optimizer's state, copied where they are.

A copy is taken on the device between two steps, into room that was made before the first one; another thread takes it
to the host. Paged state lies in memory that host and device share: on CUDA it is copied as the device sees it, because
reading it on the host would move its pages there and back.
"""

import json
from collections.abc import Mapping
from typing import Any

UNCHANGING = ("qmap1", "qmap2")  # of bitsandbytes: one table for all parameters


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
        """Let the optimizer make its state, by a step that changes nothing, and set it back to its beginning."""
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
                self.state[name] = self._seen_by_device(owner[key])
                if key not in UNCHANGING:
                    self.state[name].zero_()
            else:
                owner[key] = 0

    def _entries(self) -> Any:
        """(name, the parameter's state, its key) of everything that the optimizer keeps."""
        number = 0
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                owner = self._optimizer.state[parameter]
                for key in sorted(owner):
                    if key not in UNCHANGING:
                        yield f"{number:05}.{key}", owner, key
                number += 1

    def counters(self) -> dict[str, int]:
        """What the optimizer keeps as plain numbers."""
        return {name: owner[key] for name, owner, key in self._entries() if not self._torch.is_tensor(owner[key])}

    def bytes(self) -> int:
        tensors = [*self.adapter.values(), *self.state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def restore(self, adapter: Mapping[str, Any], state: Mapping[str, Any], counters: Mapping[str, int]) -> None:
        """Become what was kept. Raises KeyError or RuntimeError where that has other names or shapes."""
        for mine, given in ((self.adapter, adapter), (self.state, state)):
            if mine.keys() != given.keys():
                raise KeyError(f"other names than this model's: {min(mine.keys() ^ given.keys())}")
            for name, tensor in mine.items():
                if tensor.shape != given[name].shape:
                    raise KeyError(f"{name}: {tuple(given[name].shape)}, this model has {tuple(tensor.shape)}")
                tensor.copy_(given[name])
        self.set_counters(counters)
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()

    def flat(self) -> Any:
        """Everything as one tensor of bytes on the host, for the other ranks."""
        tensors = (*self.adapter.values(), *self.state.values())
        parts = [tensor.to("cpu").contiguous().view(-1).view(self._torch.uint8) for tensor in tensors]
        return self._torch.cat(parts)

    def become(self, flat: Any) -> None:
        """The reverse of `flat`."""
        start = 0
        for tensor in (*self.adapter.values(), *self.state.values()):
            size = tensor.numel() * tensor.element_size()
            # A copy, because a slice need not begin where a float may.
            part = flat[start : start + size].clone()
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
            start += size

    def set_counters(self, counters: Mapping[str, int]) -> None:
        for name, owner, key in self._entries():
            if not self._torch.is_tensor(owner[key]):
                owner[key] = counters[name]

    def _seen_by_device(self, tensor: Any) -> Any:
        if not getattr(tensor, "is_paged", False) or not self._torch.cuda.is_available():
            return tensor
        return self._torch.as_tensor(_Shared(tensor), device="cuda")


class _Shared:
    """Memory that host and device share, as CUDA's array interface describes it."""

    def __init__(self, tensor: Any) -> None:
        self.kept = tensor
        kind = {1: "|u1", 4: "<f4"}[tensor.element_size()]
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": kind,
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


class Snapshot:
    """Room for one copy of the weights, on their devices and on the host."""

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
        self._taken = torch.cuda.Event() if self._is_cuda else None
        self._stream = torch.cuda.Stream() if self._is_cuda else None

    def take(self) -> None:
        """Copy, behind everything the device has been given to do."""
        for is_cuda in (False, True):
            names = [name for name, tensor in self._sources.items() if bool(tensor.is_cuda) is is_cuda]
            if names:
                self._torch._foreach_copy_([self._copies[n] for n in names], [self._sources[n] for n in names])
        self._counters = self._weights.counters()
        if self._taken is not None:
            self._taken.record()

    def on_host(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
        """(adapter, state, counters) of the last copy; may be called by another thread while training goes on."""
        found = dict(self._copies)
        if self._stream is not None:
            self._stream.wait_event(self._taken)
            with self._torch.cuda.stream(self._stream):
                for name, room in self._host.items():
                    room.copy_(self._copies[name], non_blocking=True)
            self._stream.synchronize()
            found |= self._host
        parts = {kind: {n[2:]: t for n, t in found.items() if n.startswith(f"{kind}/")} for kind in "as"}
        return parts["a"], parts["s"], dict(self._counters)


def adapter_config(peft_model: Any) -> str:
    """adapter_config.json, with sets in order: the same text in every process."""
    (config,) = peft_model.peft_config.values()
    document = {**config.to_dict(), "inference_mode": True}
    plain = {
        key: sorted(value) if isinstance(value, set) else getattr(value, "value", value)
        for key, value in document.items()
    }
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"
