"""Imports the deep-learning stack: once, quickly, offline. Importing this module is cheap; `load()` imports torch.

Here are all differences between transformers 4.48 and 5.x, and all settings of the whole process.
"""

import gc
import importlib
import inspect
import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# No trial uses the network: a model or tokenizer that is not on the disk is an error, not a download.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The imported modules: functions that need them take them as an argument."""

    torch: ModuleType
    transformers: ModuleType
    peft: ModuleType
    bitsandbytes: ModuleType

    @property
    def bitsandbytes_runs_on_cpu(self) -> bool:
        """bitsandbytes 0.46 brought kernels for the CPU; older versions need a driver."""
        major, minor = (int(part) for part in self.bitsandbytes.__version__.split(".")[:2])
        return (major, minor) >= (0, 46)

    def dtype_argument(self, dtype: Any) -> dict[str, Any]:
        """`from_pretrained`'s keyword for the weights' type: `torch_dtype` was renamed `dtype` in 4.56."""
        major, minor = (int(part) for part in self.transformers.__version__.split(".")[:2])
        return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}

    def static_cache(self, config: Any, *, batch: int, length: int, device: Any, dtype: Any) -> Any:
        """Keys and values of `length` positions at fixed addresses. From 4.56 on only `length` is read."""
        return self.transformers.StaticCache(
            config=config, max_batch_size=batch, max_cache_len=length, device=device, dtype=dtype
        )

    def cached(self, cache: Any, layer: int) -> tuple[Any, Any]:
        """A layer's keys and values in a static cache; from 4.54 on caches are lists of layers."""
        if hasattr(cache, "layers"):
            return cache.layers[layer].keys, cache.layers[layer].values
        return cache.key_cache[layer], cache.value_cache[layer]

    def position_arguments(self, decoder: Any, positions: Any) -> dict[str, Any]:
        """A decoder's keywords for the positions of its tokens, of shape (tokens,). 5.x has no `cache_position`."""
        known = inspect.signature(decoder.forward).parameters
        cache_position = {"cache_position": positions} if "cache_position" in known else {}
        return {"position_ids": positions.unsqueeze(0), **cache_position}


def set_environment() -> None:
    """Must run before torch, transformers or huggingface_hub is imported: they read the variables once."""
    os.environ.update(OFFLINE)
    # Threads that wait by spinning take the core from the thread they wait for. Measured on two busy cores: 0.17 s of
    # processor time a step with this, 0.54 to 2.7 s without. On an idle machine: no difference.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Weights that are made one by one leave gaps in the allocator's memory: 1.3 of 21 GiB with products in 8 bits, and
    # 0.3 GiB with segments that grow. A captured step (`bench.qlora.recipes.cuda_graph`) cannot use such gaps.
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def load() -> Stack:
    """Import torch, transformers, peft and bitsandbytes. Raises ImportError.

    2.6 s of one core instead of 4.9 s: the garbage collector walks a million new objects repeatedly (0.7 s), and
    bitsandbytes decorates three helpers with torch.compile at import, which loads torch's compiler (0.9 to 1.5 s). No
    trial calls the three: NF4 and the 8-bit optimizer have kernels of their own on CUDA and on the CPU. 0.4 s more go:
    transformers looks for names in the files of its 500 models once, not twice.
    """
    set_environment()
    # A warning at import about a fused kernel for inference on the CPU, which a training step does not use.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    collecting = gc.isenabled()
    gc.disable()
    try:
        torch = importlib.import_module("torch")
        transformers = importlib.import_module("transformers")
        _look_once(transformers)
        importlib.import_module("transformers.modeling_utils")
        bitsandbytes = _import_uncompiled(torch, "bitsandbytes")
        peft = importlib.import_module("peft")
    finally:
        gc.freeze()  # imported modules stay; the collector need not look at them again
        if collecting:
            gc.enable()
    _quieten(transformers)
    return Stack(torch=torch, transformers=transformers, peft=peft, bitsandbytes=bitsandbytes)


def _look_once(transformers: ModuleType) -> None:
    """What transformers has found in its folder of models is not looked for again where `transformers.models` asks for
    it by another name of that folder."""
    utils: Any = importlib.import_module("transformers.utils.import_utils")
    look: Any = getattr(utils, "create_import_structure_from_path", None)
    models = Path(str(transformers.__file__)).with_name("models")

    def looked(path: Any) -> Any:
        return look(models if Path(path) == models / "__init__.py" else path)

    if hasattr(look, "cache_info"):  # it remembers by name
        utils.create_import_structure_from_path = looked


def _import_uncompiled(torch: Any, name: str) -> ModuleType:
    compile_, torch.compile = torch.compile, _as_it_is
    try:
        return importlib.import_module(name)
    finally:
        torch.compile = compile_


def _as_it_is(function: Any = None, **_options: Any) -> Any:
    return function if function is not None else _as_it_is


def _quieten(transformers: Any) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # 5.23 renames gradient checkpointing to activation checkpointing; the old names work in every version we run on.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)


def free(torch: Any, *, is_cuda: bool) -> None:
    """Give back the memory of what nothing refers to any more."""
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()
