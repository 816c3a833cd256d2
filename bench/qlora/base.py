"""Record of how a model holds its tensors, read from the model: loaded, or made on the meta device without weights.

A module that quantizes its own parameters, as one for experts in NF4, has an attribute `nf4_shapes`: the names of these
parameters in the unquantized module, with their shapes. Its other tensors are not read.
"""

from collections.abc import Iterator
from typing import Any

from bench.records.adapter import NF4, BaseRecord, HeldTensor

PEFT_PREFIX, PEFT_LAYER = "base_model.model.", ".base_layer"


def read_base(model: Any) -> BaseRecord:
    """Read the record of a model, with or without adapters by peft."""
    adapters = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    return BaseRecord(
        tensors=dict(_tensors(model)), adapters=[name.removeprefix(PEFT_PREFIX) for name in sorted(adapters)]
    )


def _tensors(model: Any) -> Iterator[tuple[str, HeldTensor]]:
    seen = set()  # tied tensors are held once
    for path, module in model.named_modules():
        if ".lora_" in path:
            continue
        prefix = f"{path}.".removeprefix(PEFT_PREFIX).replace(f"{PEFT_LAYER}.", ".") if path else ""
        if (shapes := getattr(module, "nf4_shapes", None)) is not None:
            for name, shape in shapes.items():
                yield f"{prefix}{name}", HeldTensor(kind=NF4, shape=list(shape))
            continue
        named = (*module._parameters.items(), *module._buffers.items())
        for name, tensor in named:
            if tensor is not None and name not in module._non_persistent_buffers_set and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}{name}", _held(module, tensor)


def _held(module: Any, tensor: Any) -> HeldTensor:
    state = getattr(tensor, "quant_state", None)
    if not hasattr(tensor, "quant_type"):
        return HeldTensor(kind=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape))
    is_transposed = getattr(getattr(module, "source_cls", None), "__name__", "") == "Conv1D"
    shape = list(tensor.shape if state is None else state.shape)
    return HeldTensor(kind=NF4, shape=shape[::-1] if is_transposed else shape, is_transposed=is_transposed)
