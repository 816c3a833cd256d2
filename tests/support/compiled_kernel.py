"""Compilation of Triton kernels for GPUs that this machine lacks, by their own launchers.

`recorded_launches` reads what `bench.kernels.ahead` compiles.
"""

import ast
import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from bench.kernels import ahead
from tests.support.paths import ROOT

# Shared memory of a program, in bytes, by compute capability; registers of a multiprocessor.
SHARED_BYTES = {86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
MAX_REGISTERS, REGISTERS = 255, 65_536
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


@contextlib.contextmanager
def recorded_launches(capability: int) -> Iterator[list[CompiledLaunch]]:
    """Compile the launches of the block for this compute capability, 86 or 90; append different ones at its end."""
    launches: list[CompiledLaunch] = []
    with ahead.compiling_for(f"{capability // 10}.{capability % 10}") as kernels:
        yield launches
    different = {kernel.hash: kernel for kernel in kernels}.values()
    launches += [_compiled_launch(kernel.src.fn.__name__, kernel, capability) for kernel in different]


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
