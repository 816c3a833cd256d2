"""Compilation of CUDA C++ by PyTorch's NVRTC, and launches through the driver on PyTorch's stream.

It serves kernels that need control over lanes and tables in shared memory, which Triton does not give. NVRTC and the
driver have stable C interfaces. A kernel is compiled once per process and set of constants.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

MAX_DYNAMIC_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
STREAM_SERIALIZATION_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MIN_OVERLAPPING_ARCHITECTURE = 90
CXX_STANDARD = "--std=c++17"


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class _Launch(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class NvrtcError(RuntimeError):
    """Failure to load NVRTC or to compile a source; the message says which."""


class Kernel:
    """GPU function, launched on PyTorch's current stream, so that a CUDA graph captures it."""

    def __init__(self, function: Any, module: Any, name: str, *, overlaps: bool) -> None:
        self._function, self._module, self._name = function, module, name
        self._shared = 0
        self._attributes = (
            (_Attribute * 1)(_Attribute(id=STREAM_SERIALIZATION_ATTRIBUTE, value=1)) if overlaps else None
        )

    def __call__(self, grid: Sequence[int], threads: int, arguments: Sequence[Any], *, shared: int = 0) -> None:
        """Launch the kernel. `arguments`: ctypes objects, by value. `shared`: bytes of dynamic shared memory."""
        driver = _driver()
        if shared > self._shared:
            _check(driver.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED_ATTRIBUTE, shared), self._name)
            self._shared = shared
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        grid_x, grid_y, grid_z = (*grid, 1, 1)[:3]
        launch = _Launch(
            grid_x, grid_y, grid_z, threads, 1, 1, shared, torch.cuda.current_stream().cuda_stream, self._attributes,
            0 if self._attributes is None else 1,
        )  # fmt: skip
        _check(driver.cuLaunchKernelEx(ctypes.byref(launch), self._function, pointers, None), self._name)


@functools.cache
def load_kernel(source: Path, name: str, architecture: str, constants: tuple[tuple[str, int], ...]) -> Kernel:
    """Compile and load function `name` of a source file for an `architecture` such as "sm_86". Raises NvrtcError.

    From Hopper on the kernel may start before the previous kernel ends; its source waits where it must.
    """
    binary = compile_source(source, architecture, constants)[0]
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), binary), name)
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
    return Kernel(
        function, module, name, overlaps=int(architecture.removeprefix("sm_")) >= MIN_OVERLAPPING_ARCHITECTURE
    )


def compile_source(source: Path, architecture: str, constants: tuple[tuple[str, int], ...]) -> tuple[bytes, str]:
    """Return (machine code, the assembler's report of registers and spills). Needs no GPU. Raises NvrtcError."""
    library = _nvrtc()
    options = [f"--gpu-architecture={architecture}", CXX_STANDARD, "--ptxas-options=-v"]
    options += [f"-D{name}={value}" for name, value in constants]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program = ctypes.c_void_p()
    text = source.read_bytes()
    if library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None):
        raise NvrtcError(f"{source.name}: NVRTC cannot create a program")
    try:
        failed = library.nvrtcCompileProgram(program, len(options), encoded)
        log = _read_output(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
        if failed:
            raise NvrtcError(f"{source.name} does not compile for {architecture}: {log.strip()[:2000]}")
        return _read_output(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read_output(get_size: Any, get: Any, program: Any) -> bytes:
    size = ctypes.c_size_t()
    get_size(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw


def unsupported_reason() -> str | None:
    """Return why nothing can be compiled here, or None."""
    try:
        _nvrtc()
    except NvrtcError as error:
        return str(error)
    return None


@functools.cache
def _nvrtc() -> Any:
    """Load the NVRTC library that belongs to this PyTorch. Raises NvrtcError."""
    version = torch.version.cuda
    major = None if version is None else version.split(".")[0]
    names = [] if major is None else [f"libnvrtc.so.{major}"]
    # PyTorch's wheels install NVRTC and its builtins in a separate package that is on no search path.
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else list(spec.submodule_search_locations or ()):
        names += sorted(map(str, Path(folder).glob(f"*/lib/libnvrtc.so.{major or '*'}")))
    for name in names:
        try:
            for part in Path(name).parent.glob("libnvrtc-builtins.so.*") if "/" in name else ():
                ctypes.CDLL(str(part))
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NvrtcError("NVRTC (CUDA's runtime compiler) was not found: PyTorch for CUDA includes it")


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, name: str) -> None:
    if result:
        message = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(message))
        raise RuntimeError(f"{name}: {(message.value or b'error').decode()} ({result})")
