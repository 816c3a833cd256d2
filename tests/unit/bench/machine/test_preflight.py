"""A GPU without bf16 and a machine without a compiler raise an error before the trial starts."""

import contextlib
import importlib.util
import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.machine import preflight
from bench.torch_stack import Stack


class CudaLibrary:
    """bitsandbytes' library with GPU support."""

    compiled_with_cuda = True


def machine(capability: tuple[int, int]) -> Stack:
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_capability=lambda: capability, get_device_name=lambda: "Tesla T4"
    )
    torch: Any = SimpleNamespace(cuda=cuda, __version__="2.11.0", version=SimpleNamespace(cuda="13.0"))
    library: Any = SimpleNamespace(cextension=SimpleNamespace(lib=CudaLibrary()), __version__="0.50.2")
    nothing: Any = SimpleNamespace()
    return Stack(torch=torch, transformers=nothing, peft=nothing, bitsandbytes=library)


@pytest.mark.parametrize("kind", ["training", "inference", "loading", "distributed", "hardware"])
def test_a_gpu_without_bf16_is_refused_by_its_name_for_every_kind_but_hardware(make_trial, kind):
    preflight.check(machine((8, 0)), make_trial(kind=kind))
    is_refused = pytest.raises(InputError, match=r"^Tesla T4: compute capability 7\.5 .*; .*8\.0[^\n]*$")
    with contextlib.nullcontext() if kind == "hardware" else is_refused:
        preflight.check(machine((7, 5)), make_trial(kind=kind))


@pytest.mark.parametrize(("programs", "variables", "has_header", "message"), [
    ({"gcc"}, {}, True, None),
    ({"clang"}, {}, True, None),
    ({"cc2"}, {"CC": "cc2"}, True, None),
    (set(), {}, True, "neither gcc nor clang "),
    ({"gcc"}, {"CC": "cc2"}, True, "CC=cc2: "),
    ({"gcc"}, {}, False, "INCLUDE/Python.h: "),
])  # fmt: skip
def test_kernels_are_refused_where_triton_could_not_launch_them(
    make_trial, monkeypatch, tmp_path, programs, variables, has_header, message
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if has_header:
        Path(tmp_path, "Python.h").touch()
    for kind in ("hardware", "loading", "inference", "training"):
        preflight.check(machine((8, 6)), make_trial(kind=kind, recipe="reference"))
    for recipe in ("fast", "stock"):
        trial = make_trial(recipe=recipe)
        if message is None:
            preflight.check(machine((8, 6)), trial)
            continue
        with pytest.raises(InputError) as caught:
            preflight.check(machine((8, 6)), trial)
        assert str(caught.value).replace(str(tmp_path), "INCLUDE").startswith(message)
