"""The import of the deep-learning stack: fast and offline. Importing this module is cheap; `load()` imports torch.

This module handles all differences between transformers 4.48 and 5.x and makes all process-wide settings.
"""

import gc
import importlib
import logging
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# No trial uses the network: a model or tokenizer missing on the disk is an error and is not downloaded.
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
    """The imported modules, passed as an argument to the functions that need them."""

    torch: ModuleType
    transformers: ModuleType
    peft: ModuleType
    bitsandbytes: ModuleType

    @property
    def bitsandbytes_runs_on_cpu(self) -> bool:
        """True from bitsandbytes 0.46 on, which added CPU kernels; older versions need a driver."""
        major, minor = (int(part) for part in self.bitsandbytes.__version__.split(".")[:2])
        return (major, minor) >= (0, 46)

    def dtype_argument(self, dtype: Any) -> dict[str, Any]:
        """Return `from_pretrained`'s keyword for the weights' dtype: 4.56 renamed `torch_dtype` to `dtype`."""
        major, minor = (int(part) for part in self.transformers.__version__.split(".")[:2])
        return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}

    def cache_arguments(self, model: Any, length: int) -> dict[str, Any]:
        """Return `generate`'s keywords for a static cache of `length` tokens, if the model says that it can have one.

        4.48 has no such flag. With `cache_implementation` the length would be that of the longest answer so far, and an
        answer's last bits would depend on earlier ones. Each length would be compiled on a GPU.
        """
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        if not getattr(base, "_can_compile_fullgraph", False):
            return {}
        cache = self.transformers.StaticCache(config=base.config.get_text_config(decoder=True), max_cache_len=length)
        return {"past_key_values": cache, "disable_compile": True}


class DeviceClock:
    """Time stamps: CUDA events on the current stream, which do not wait for the device, or the host's clock."""

    def __init__(self, torch: Any, *, is_cuda: bool) -> None:
        self._torch, self._is_cuda = torch, is_cuda

    def stamp(self) -> Any:
        """Return the time at which the device has finished everything queued so far."""
        if not self._is_cuda:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two stamps; waits for the device to reach `end`."""
        if not self._is_cuda:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        if self._is_cuda:
            self._torch.cuda.synchronize()


def set_environment() -> None:
    """Set environment variables. Must run before torch, transformers or huggingface_hub is imported: they read once."""
    os.environ.update(OFFLINE)
    # Spinning threads take the core from the thread they wait for. Measured on two busy cores: 0.17 s of CPU time per
    # step with this setting, 0.54 to 2.7 s without. On an idle machine: no difference.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Weights created one by one fragment the allocator's memory: 1.3 of 21 GiB with products in 8 bits, 0.3 GiB with
    # expandable segments. A captured step (`bench.qlora.recipes.cuda_graph`) cannot use these gaps.
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def load() -> Stack:
    """Import torch, transformers, peft and bitsandbytes. Raises ImportError.

    Takes 2.6 s of one core instead of 4.9 s. The garbage collector is off: it would scan a million new objects
    repeatedly (0.7 s). torch.compile is disabled: bitsandbytes decorates three helpers with it at import, which loads
    torch's compiler (0.9 to 1.5 s). No trial calls the three: NF4 and the 8-bit optimizer have separate kernels on CUDA
    and on the CPU. transformers scans the files of its 500 models once instead of twice (0.4 s).
    """
    set_environment()
    # Suppress an import warning about a fused CPU inference kernel, which a training step does not use.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    collecting = gc.isenabled()
    gc.disable()
    try:
        torch = importlib.import_module("torch")
        transformers = importlib.import_module("transformers")
        _cache_model_search(transformers)
        importlib.import_module("transformers.modeling_utils")
        bitsandbytes = _import_uncompiled(torch, "bitsandbytes")
        peft = importlib.import_module("peft")
    finally:
        gc.freeze()  # imported modules stay loaded; the collector need not scan them again
        if collecting:
            gc.enable()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # 5.23 renames gradient checkpointing to activation checkpointing; the old names work in every supported version.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    return Stack(torch=torch, transformers=transformers, peft=peft, bitsandbytes=bitsandbytes)


def _cache_model_search(transformers: ModuleType) -> None:
    """Let transformers reuse its scan of the models folder when `transformers.models` names that folder differently."""
    utils: Any = importlib.import_module("transformers.utils.import_utils")
    search: Any = getattr(utils, "create_import_structure_from_path", None)
    models = Path(str(transformers.__file__)).with_name("models")

    def cached_search(path: Any) -> Any:
        return search(models if Path(path) == models / "__init__.py" else path)

    if hasattr(search, "cache_info"):  # the cache's key is the path
        utils.create_import_structure_from_path = cached_search


def _import_uncompiled(torch: Any, name: str) -> ModuleType:
    compile_, torch.compile = torch.compile, _identity_decorator
    try:
        return importlib.import_module(name)
    finally:
        torch.compile = compile_


def _identity_decorator(function: Any = None, **_options: Any) -> Any:
    return function if function is not None else _identity_decorator


def free_memory(torch: Any, *, is_cuda: bool) -> None:
    """Release memory that is no longer referenced."""
    gc.collect()
    if is_cuda:
        torch.cuda.empty_cache()
