"""Base models as transformers loads them, and the record of how a model holds its tensors, read from the model itself.

A `Skeleton` is the model of a folder on the meta device, made from the headers of its weights files: the same classes
and conversions as of the loaded model, without its weights. It also knows which tensors of the files make a tensor of
the model: transformers renames most of them, and joins or splits some, as those of experts.
"""

import copy
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.architectures import find
from bench.data.inputs import InputError
from bench.data.model_folder import is_mxfp4, read_config, read_headers, weight_files
from bench.records.adapter import NF4, BaseRecord, HeldTensor
from bench.torch_stack import Stack

PEFT_PREFIX, PEFT_LAYER = "base_model.model.", ".base_layer"
# By safetensors' names: torch's.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


# The record -----------------------------------------------------------------------------------------------------------


def read_base(model: Any) -> BaseRecord:
    """Read the record of a model, with or without adapters by peft."""
    return BaseRecord(tensors=dict(_tensors(model)), adapters=_adapters(model))


def trained_base(peft_model: Any) -> BaseRecord:
    """Return the record of a loaded base with its adapters. What a recipe casts or holds otherwise is not in it."""
    record: BaseRecord = peft_model.get_base_model().base_record
    return replace(record, adapters=_adapters(peft_model))


def _adapters(model: Any) -> list[str]:
    names = (name for name, module in model.named_modules() if hasattr(module, "lora_A"))
    return sorted(name.removeprefix(PEFT_PREFIX) for name in names)


def _tensors(model: Any) -> Iterator[tuple[str, HeldTensor]]:
    seen = set()  # tied tensors are held once
    for path, module in model.named_modules():
        if ".lora_" in path:
            continue
        prefix = f"{path}.".removeprefix(PEFT_PREFIX).replace(f"{PEFT_LAYER}.", ".") if path else ""
        named = (*module._parameters.items(), *module._buffers.items())
        for name, tensor in named:
            if tensor is not None and name not in module._non_persistent_buffers_set and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}{name}", _held(module, name, tensor)


def _held(module: Any, name: str, tensor: Any) -> HeldTensor:
    classes = type(module), getattr(module, "source_cls", None) or object  # before it was quantized
    is_transposed = name == "weight" and "Conv1D" in [each.__name__ for each in classes]
    if not hasattr(tensor, "quant_type"):
        kind, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        return HeldTensor(kind=kind, shape=shape, is_transposed=is_transposed)
    state = tensor.quant_state
    shape = list(tensor.shape if state is None else state.shape)
    return HeldTensor(kind=NF4, shape=shape[::-1] if is_transposed else shape, is_transposed=is_transposed)


# Loading --------------------------------------------------------------------------------------------------------------


def load_text_model(stack: Stack, folder: str, tensors: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Load the causal language model of a checked folder, only the text part of one that also takes images.

    With `tensors` of the meta device, from these instead of the weights files. Raises InputError for a model type that
    this version of transformers does not know.
    """
    content, local = read_config(Path(folder)), {"trust_remote_code": False, "local_files_only": True}
    architecture, auto = find(content), stack.transformers.AutoModelForCausalLM
    try:
        config = stack.transformers.AutoConfig.from_pretrained(folder, **local).get_text_config()
        if architecture.renames:
            config.tie_word_embeddings = architecture.geometry(content).is_tied
            options |= {"config": config, "key_mapping": dict(architecture.renames)}
        elif getattr(config, "languages", None) and config.default_language is None:  # X-MOD's
            raise ValueError("no default_language")
        elif type(config) not in auto._model_mapping:
            raise ValueError(f"no causal language model of type {config.model_type}")
    except (ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise InputError(
            f"{folder}/config.json: transformers {stack.transformers.__version__}: {reason}",
            remedy="use a model that transformers loads without code of its own",
        ) from error
    if is_mxfp4(content):
        if "quantization_config" in options:
            del config.quantization_config  # the experts are dequantized on their way to NF4
            options["config"] = config
        else:
            options["quantization_config"] = stack.transformers.Mxfp4Config(dequantize=True)
    if tensors is None:
        return auto.from_pretrained(folder, use_safetensors=True, **local, **options)
    model_class = auto._model_mapping[type(config)]
    if importlib.util.find_spec("transformers.core_model_loading") is not None:
        return model_class.from_pretrained(None, **{**options, "config": config, "state_dict": dict(tensors)})
    quantization = options.pop("quantization_config", None)  # before version 5
    with stack.torch.device("meta"):
        model = model_class._from_config(config, **{key: options[key] for key in options if "dtype" in key})
    if quantization is not None:
        quantizer = importlib.import_module("transformers.quantizers").AutoHfQuantizer.from_config(quantization)
        quantizer.preprocess_model(model=model, device_map={}, keep_in_fp32_modules=[])
    model.tie_weights()
    return model


def has_liger() -> bool:
    return importlib.util.find_spec("liger_kernel") is not None


def liger_patch(config: Mapping[str, Any]) -> Any | None:
    """Return Liger's patch for a model's type; None if it is not installed or has none."""
    if not has_liger():
        return None
    model_type = find(config).liger_type or config["model_type"]
    return getattr(importlib.import_module("liger_kernel.transformers"), f"apply_liger_kernel_to_{model_type}", None)


def nf4_options(stack: Stack, compute_dtype: Any) -> dict[str, Any]:
    """Return `from_pretrained`'s keywords for a base in NF4 with double quantization, experts included."""
    importlib.import_module("bench.qlora.experts").use_nf4(stack)  # it imports torch
    return {
        "quantization_config": stack.transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=NF4,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute_dtype,
        )
    }


def widen(torch: Any, model: Any, dtype: Any) -> None:
    """Cast what was loaded in bf16 to `dtype`, in which NF4's weights are then dequantized; float32 stays."""
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.dtype == torch.bfloat16:
                tensor.data = tensor.data.to(dtype)
            if getattr(tensor, "quant_state", None) is not None:
                tensor.quant_state.dtype = dtype


# Without weights ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Tensors of weights files that make one or several of the model.

    `sources` are names in the files, `target` the first of the model's; None if the model has none of them. `pattern`
    is set if transformers changes more than names.
    """

    sources: tuple[str, ...]
    target: str | None
    pattern: str | None = None


class Skeleton:
    """Model of a folder on the meta device. Raises InputError if its weights do not make the whole model."""

    def __init__(self, stack: Stack, folder: Path, *, nf4: bool) -> None:
        torch = stack.torch
        self.headers = {name: entry for path in weight_files(folder) for name, entry in read_headers(path).items()}
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, DTYPES[dtype]), device="meta")
            for name, (dtype, shape) in self.headers.items()
        }
        options = {**(nf4_options(stack, torch.bfloat16) if nf4 else {}), **stack.dtype_argument(torch.bfloat16)}
        self._core, self._converters, self._renamings = None, [], []
        if importlib.util.find_spec("transformers.core_model_loading") is None:
            self.model, missing = load_text_model(stack, str(folder), tensors, **options), set()
        else:
            self._core = importlib.import_module("transformers.core_model_loading")
            options |= {"device_map": {"": "meta"}, "output_loading_info": True}
            self.model, info = load_text_model(stack, str(folder), tensors, **options)
            missing, conversions = info["missing_keys"], self.model._weight_conversions
            self._renamings = [each for each in conversions if isinstance(each, self._core.WeightRenaming)]
            self._converters = [each for each in conversions if isinstance(each, self._core.WeightConverter)]
        if missing:
            name = min(missing)
            raise InputError(f"{folder}: {name}: missing in the weights", remedy="fetch or make the model again")
        self._module_name = find(read_config(folder)).module_name
        self._patterns = {pattern: each for each in self._converters for pattern in each.source_patterns}

    def groups(self) -> list[TensorGroup]:
        """List the groups of the files' tensors, in transformers' order."""
        groups: dict[str, TensorGroup] = {}
        state = self.model.state_dict(keep_vars=True)
        first_names: dict[int, str] = {}  # tied tensors have one in the record
        for name in read_base(self.model).tensors:
            first_names.setdefault(id(state[name]), name)
        for name in self.headers if self._core is None else sorted(self.headers, key=self._core.dot_natural_key):
            target, pattern = self._rename(name, state)
            if target not in state:
                groups[name] = TensorGroup(sources=(name,), target=None)
                continue
            earlier = groups[target].sources if target in groups else ()
            first_name = first_names[id(state[target])]
            groups[target] = TensorGroup(sources=(*earlier, name), target=first_name, pattern=pattern)
        return list(groups.values())

    def _rename(self, name: str, state: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the name in the model, and the pattern of a conversion; before version 5 transformers has none."""
        if self._core is None:
            return self._module_name(name), None
        prefix = self.model.base_model_prefix
        target, pattern = self._core.rename_source_key(name, self._renamings, self._converters, prefix, state)
        if target not in state and name in state:
            target, pattern = self._core.rename_source_key(name, [], [], prefix, state)
        return target, pattern

    def convert(self, group: TensorGroup, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Make the model's tensors of a group from those of the files."""
        if self._core is None or group.target is None or group.pattern is None:
            return {group.target or group.sources[0]: tensors[group.sources[0]]}
        converter = copy.deepcopy(self._patterns[group.pattern])
        for name in group.sources:
            _, pattern = self._core.rename_source_key(name, self._renamings, self._converters)
            converter.add_tensor(group.target, name, pattern, tensors[name])
        made = converter.convert(group.target, model=self.model, config=self.model.config)
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}

    def revert(self, group: TensorGroup, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Make the files' tensors of a group from the model's; without a way back, the model's with their names."""
        if self._core is None or group.target is None or group.pattern is None:
            return {group.sources[0]: next(iter(tensors.values()))}
        try:
            reverted = dict(self._core.revert_weight_conversion(self.model, dict(tensors)))
        except NotImplementedError:  # such as of experts in MXFP4
            return dict(tensors)
        return reverted if reverted.keys() == set(group.sources) else dict(tensors)
