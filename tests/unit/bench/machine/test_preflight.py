"""A machine whose GPU, bitsandbytes or compiler cannot be used raises one line before the trial starts."""

import importlib.util
import re
import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.machine import preflight
from bench.torch_stack import Stack

PLAIN = {"base_precision": "bf16", "optimizer": "adamw_torch"}  # needs no bitsandbytes
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 12040).\nPlease update your GPU driver"


def make_stack(**changes: Any) -> Stack:
    """Make a stack; `error` is CUDA's, without which it has a GPU, `file` that of bitsandbytes."""
    fields = {"error": None, "cuda": "13.0", "has_build": True, "version": "0.50.2", "capability": (8, 6), "file": ""}
    parts = SimpleNamespace(**fields | changes)

    def init() -> None:
        raise RuntimeError(parts.error)

    device = SimpleNamespace(
        is_available=lambda: parts.error is None,
        init=init,
        get_device_capability=lambda: parts.capability,
        get_device_name=lambda: "Tesla T4",
    )
    torch: Any = SimpleNamespace(__version__="2.11.0", version=SimpleNamespace(cuda=parts.cuda), cuda=device)
    library = type("Library", (), {"compiled_with_cuda": parts.has_build})()  # bitsandbytes': the class has it
    extension = SimpleNamespace(lib=library)
    bitsandbytes: Any = SimpleNamespace(__version__=parts.version, __file__=parts.file, cextension=extension)
    return Stack(torch=torch, transformers=torch, peft=torch, bitsandbytes=bitsandbytes)


# The stack, the trial's fields, CUDA_VISIBLE_DEVICES where a device file exists, else False; the refusal, else None.
CASES: list[tuple[dict[str, Any], dict[str, Any], str | bool | None, str | None]] = [
    *(
        ({"error": error, "cuda": cuda}, {}, None, rf"FILE: .*torch 2\.11\.0 .*{error[:20]}.*; {remedy}")
        for error, cuda, remedy in (
            (OLD_DRIVER, "13.0", ".*CUDA 13.0"),
            ("Torch not compiled with CUDA enabled", None, ".*CUDA build"),
            ("Found no NVIDIA driver on your system.", "13.0", ".*NVIDIA runtime"),
            ("No CUDA GPUs are available", "13.0", ".*nvidia.com/gpu: 1"),
            ("CUDA unknown error - this may be due to an incorrectly set up environment", "13.0", ".*reboot"),
        )
    ),
    *(({"error": ""}, {}, hidden, None) for hidden in ("-1", False)),
    ({"error": "", "version": "0.43.1"}, {}, False, r"bitsandbytes 0\.43\.1 .*optimizer=adamw_torch"),
    ({"error": "", "version": "0.43.1"}, PLAIN, False, None),
    ({"has_build": False}, {}, None, r".*CUDA 13\.0 .*CUDA 121, 124; .*BNB_CUDA_VERSION"),
    ({"has_build": False}, {"base_precision": "bf16"}, None, "bitsandbytes"),  # the 8-bit optimizer needs it too
    ({"has_build": False}, PLAIN, None, None),
    ({"has_build": False}, {"kind": "hardware"}, None, None),
    ({"capability": (7, 5)}, {"kind": "loading"}, None, r"Tesla T4: compute capability 7\.5 .*; .*8\.0"),
    ({"capability": (7, 5)}, {"kind": "hardware"}, None, None),
]


@pytest.mark.parametrize(("stack", "fields", "visible", "refusal"), CASES)
def test_what_a_trial_needs_and_a_machine_lacks_is_refused_in_one_line(
    make_trial, monkeypatch, tmp_path, stack, fields, visible, refusal
):
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path / "nvidiactl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not False:
        (tmp_path / "nvidiactl").touch()
    if isinstance(visible, str):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for build in ("121", "124"):
        (tmp_path / f"libbitsandbytes_cuda{build}.so").touch()
    made, trial = make_stack(**stack, file=str(tmp_path / "__init__.py")), make_trial(**fields)
    if refusal is None:
        preflight.check(made, trial)
        return
    with pytest.raises(InputError) as caught:
        preflight.check(made, trial)
    assert re.fullmatch(refusal.replace("FILE", str(tmp_path / "nvidiactl")) + ".*", str(caught.value))


@pytest.mark.parametrize(
    ("programs", "compiler", "header", "message"),
    [
        ({"clang"}, None, "Python.h", None),
        ({"cc2"}, "cc2", "Python.h", None),
        (set(), None, "Python.h", "neither gcc nor clang "),
        ({"gcc"}, "cc2", "Python.h", "CC=cc2: "),
        ({"gcc"}, None, "other.h", "INCLUDE/Python.h: "),
    ],
)
def test_kernels_are_refused_where_triton_could_not_launch_them(
    make_trial, monkeypatch, tmp_path, programs, compiler, header, message
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setenv("CC", compiler or "")
    Path(tmp_path, header).touch()
    preflight.check(make_stack(), make_trial(recipe="reference"))
    for recipe in ("fast", "stock"):
        error = None
        try:
            preflight.check(make_stack(), make_trial(recipe=recipe))
        except InputError as caught:
            error = str(caught).replace(str(tmp_path), "INCLUDE")
        assert (error is None) if message is None else (error or "").startswith(message)
