"""Compilation of Triton kernels for GPUs that this machine lacks, by their own launchers.

`recorded_launches` makes the functions of `bench.kernels` compile instead of launch: with tensors on device "meta",
with the tiles, warps and stages that they choose for the target.
"""

import ast
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tests.support.paths import ROOT

# Shared memory of a program, in bytes, by compute capability; registers of a multiprocessor.
SHARED_BYTES = {86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
MAX_REGISTERS, REGISTERS = 255, 65_536
PROCESSORS = {86: 72, 89: 58, 90: 132}  # A10, L4, H100
KERNELS = ROOT / "bench" / "kernels"


@dataclass(frozen=True, kw_only=True)
class CompiledLaunch:
    """A compiled kernel: its name, shared memory and spilled registers in bytes, registers of a thread, and PTX."""

    name: str
    shared: int
    registers: int
    spilled: int
    warps: int
    ptx: str


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
def recorded_launches(capability: int) -> Iterator[list[CompiledLaunch]]:
    """Compile each launch of the block for this compute capability, 86 or 90, and append it to the list."""
    launches: list[CompiledLaunch] = []
    before, run = driver._active, JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        del warmup
        made = run(self, *args, grid=grid, warmup=True, **options)
        launches.append(_compiled_launch(self.fn.__name__, made, capability))
        return made

    replaced = []
    for name, module in list(sys.modules.items()):
        for function, value in (
            ("uses_triton", lambda _: True),
            ("gpu_properties", lambda _: (divmod(capability, 10), PROCESSORS[capability])),
        ):
            if name.startswith("bench.kernels.") and function in vars(module):
                replaced.append((module, function, vars(module)[function]))
                setattr(module, function, value)
    try:
        driver.set_active(_Target(capability))
        JITFunction.run = compile_only
        yield launches
    finally:
        JITFunction.run = run
        driver._active = before
        for module, function, value in replaced:
            setattr(module, function, value)


def _compiled_launch(name: str, made: Any, capability: int) -> CompiledLaunch:
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    target = re.search(r"\.target (sm_\w+)", made.asm["ptx"])
    assert target is not None
    assert target[1].startswith(f"sm_{capability}")
    messages = subprocess.run(
        [assembler, "-v", f"-arch={target[1]}", "/dev/stdin", "-o", "/dev/null"],
        input=made.asm["ptx"], capture_output=True, text=True, timeout=300, check=True,
    ).stderr  # fmt: skip
    (spilled,) = re.findall(r"(\d+) bytes spill stores", messages)
    (registers,) = re.findall(r"Used (\d+) registers", messages)
    return CompiledLaunch(
        name=name,
        shared=made.metadata.shared,
        registers=int(registers),
        spilled=int(spilled),
        warps=made.metadata.num_warps,
        ptx=made.asm["ptx"],
    )


def defined_kernels() -> dict[str, set[str]]:
    """Read the functions of `bench.kernels` that Triton compiles: those that are launched, and those that they call."""
    compiled, launched = set(), set()
    for path in KERNELS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.dump(each) for each in node.decorator_list):
                compiled.add(node.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                launched.add(getattr(node.func.value, "id", ""))
    return {"launched": compiled & launched, "called": compiled - launched}
