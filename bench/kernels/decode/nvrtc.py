"""CUDA C++ compiled at run time by NVRTC, which PyTorch brings, and launched through the driver on PyTorch's stream.

For kernels that need what Triton does not give: which lane holds what, and tables in shared memory. The interfaces of
NVRTC and of the driver are C and stable. A kernel is compiled once a process for each set of constants.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
FIRST_OVERLAPPING = 90
STANDARD = "--std=c++17"


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("wide", "high", "deep", "threads", "_y", "_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class NoNvrtc(RuntimeError):
    """NVRTC cannot be loaded, or refuses a source; the message says which."""


class Kernel:
    """A function on the GPU. Launches go to PyTorch's current stream, so a graph captures them."""

    def __init__(self, function: Any, module: Any, name: str, *, overlaps: bool) -> None:
        self._function, self._module, self._name = function, module, name
        self._shared = 0
        self._attributes = (_Attribute * 1)(_Attribute(id=PROGRAMMATIC_SERIALIZATION, value=1)) if overlaps else None

    def __call__(self, grid: Sequence[int], threads: int, arguments: Sequence[Any], *, shared: int = 0) -> None:
        """`arguments`: ctypes objects, by value. `shared`: bytes of dynamic shared memory."""
        driver = _driver()
        if shared > self._shared:
            _check(driver.cuFuncSetAttribute(self._function, MOST_DYNAMIC_SHARED, shared), self._name)
            self._shared = shared
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        wide, high, deep = (*grid, 1, 1)[:3]
        launch = _Launch(
            wide, high, deep, threads, 1, 1, shared, torch.cuda.current_stream().cuda_stream, self._attributes,
            0 if self._attributes is None else 1,
        )  # fmt: skip
        _check(driver.cuLaunchKernelEx(ctypes.byref(launch), self._function, places, None), self._name)


@functools.cache
def kernel(source: Path, name: str, architecture: str, constants: tuple[tuple[str, int], ...]) -> Kernel:
    """The function `name` of a source file, for an `architecture` such as "sm_86". Raises NoNvrtc.

    From Hopper on it may start before the kernel in front of it ends: its source waits for it where it must.
    """
    binary = compiled(source, architecture, constants)[0]
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), binary), name)
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
    return Kernel(function, module, name, overlaps=int(architecture.removeprefix("sm_")) >= FIRST_OVERLAPPING)


def compiled(source: Path, architecture: str, constants: tuple[tuple[str, int], ...]) -> tuple[bytes, str]:
    """(the machine code, the assembler's report of registers and spills). Needs no GPU. Raises NoNvrtc."""
    library = _nvrtc()
    options = [f"--gpu-architecture={architecture}", STANDARD, "--ptxas-options=-v"]
    options += [f"-D{name}={value}" for name, value in constants]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program = ctypes.c_void_p()
    text = source.read_bytes()
    if library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None):
        raise NoNvrtc(f"{source.name}: NVRTC takes no program")
    try:
        failed = library.nvrtcCompileProgram(program, len(options), encoded)
        log = _bytes(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
        if failed:
            raise NoNvrtc(f"{source.name} does not compile for {architecture}: {log.strip()[:2000]}")
        return _bytes(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(get_size: Any, get: Any, program: Any) -> bytes:
    size = ctypes.c_size_t()
    get_size(program, ctypes.byref(size))
    room = ctypes.create_string_buffer(size.value)
    get(program, room)
    return room.raw


def unsupported_reason() -> str | None:
    """Why nothing can be compiled here; None where it can."""
    try:
        _nvrtc()
    except NoNvrtc as error:
        return str(error)
    return None


@functools.cache
def _nvrtc() -> Any:
    """The library that belongs to this PyTorch. Raises NoNvrtc."""
    version = torch.version.cuda
    major = None if version is None else version.split(".")[0]
    names = [] if major is None else [f"libnvrtc.so.{major}"]
    # PyTorch's wheels bring it in a package of its own, which is on no search path, nor is what it loads later.
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
    raise NoNvrtc("no NVRTC, CUDA's compiler at run time: it comes with PyTorch for CUDA")


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, name: str) -> None:
    if result:
        message = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(message))
        raise RuntimeError(f"{name}: {(message.value or b'error').decode()} ({result})")
