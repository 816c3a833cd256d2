"""Compilation of kernels for a GPU that is not there.

Inside `compiling_for`, a launch with tensors on "meta" compiles its kernel, with the tiles, warps and stages that the
launching function chooses for the target. `build_launchers` builds what a process needs to start such kernels.
"""

import contextlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from bench.kernels import triton_compat

PROCESSORS = {"8.0": 108, "8.6": 72, "8.9": 58, "9.0": 132}  # multiprocessors of an A100, A10, L4 and H100


class _Target:
    """The part of a driver that a compilation needs."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability  # kernels are cached by device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)


@contextlib.contextmanager
def compiling_for(architecture: str) -> Iterator[list[Any]]:
    """Compile each launch of the block for a compute capability, as "8.6"; append the results to the list.

    PROCESSORS has those that are known.
    """
    major, minor = map(int, architecture.split("."))
    kernels: list[Any] = []
    before, run = driver._active, JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        del warmup
        kernels.append(run(self, *args, grid=grid, warmup=True, **options))
        return kernels[-1]

    try:
        driver.set_active(_Target(10 * major + minor))
        JITFunction.run = compile_only
        triton_compat._ahead = (major, minor), PROCESSORS[architecture]
        yield kernels
    finally:
        JITFunction.run, driver._active, triton_compat._ahead = run, before, None


def build_launchers(kernels: Iterable[Any]) -> None:
    """Build what starts these kernels, and Triton's own helper, for a driver that is not there. Needs a C compiler."""
    different = {kernel.hash: kernel for kernel in kernels}.values()
    makers = [nvidia.CudaUtils, *(partial(nvidia.CudaLauncher, kernel.src, kernel.metadata) for kernel in different)]
    logging.getLogger("triton.runtime.build").setLevel(logging.ERROR)  # it warns of each launcher that is there already
    with tempfile.TemporaryDirectory() as folder, triton.knobs.nvidia.scope(), ThreadPoolExecutor() as pool:
        library = str(Path(folder, "libcuda.so.1"))
        argv = (os.environ.get("CC") or "cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", library, "-xc", os.devnull)
        subprocess.run(argv, check=True)
        triton.knobs.nvidia.libcuda_path = folder
        for cached in (nvidia.libcuda_dirs, nvidia.library_dirs):
            cached.cache_clear()
        list(pool.map(_write, makers))


def _write(make: Callable[[], Any]) -> None:
    """Compile a module into the cache. Then it cannot be loaded, because the driver has no functions."""
    with contextlib.suppress(ImportError):
        make()
