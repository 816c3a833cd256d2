"""Compilation of Triton kernels for a GPU that this machine lacks."""

import re
import subprocess
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

A10_SHARED_BYTES = 99 << 10
BF16 = "*bf16"
FLOATS = ("scales_y", "scales_a", "scales_b", "scales_joined", "scales", "factors", "rstd", "sums", "d_a", "d_b")
KINDS = dict.fromkeys(FLOATS, "*fp32") | {
    "indices": "*i64", "seed": "*i64", "is_outlier": "*u8", "eps": "fp32", "scale": "fp32",
}  # fmt: skip
UNEVEN = re.compile("first|last|outlier_count$|eps$|seed_offset$|limit$|scale$|chunks")


def compiled_for_an_a10(
    folder: Path,
    kernel: Any,
    constants: dict[str, Any],
    kinds: dict[str, str],
    warps: int,
    stages: int,
    max_spilled_bytes: int = 0,
) -> Any:
    """Compile for compute capability 8.6; assert that it fits 99 KiB of shared memory and spills few registers."""
    names = [parameter.name for parameter in kernel.params]
    kinds = KINDS | kinds
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    aligned = [name for name in names if name not in constants and not UNEVEN.match(name)]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]] for name in aligned
        },  # guaranteed by `int8.unsupported_reason`
    )
    made = triton.compile(source, target=GPUTarget("cuda", 86, 32), options={"num_warps": warps, "num_stages": stages})
    assert made.metadata.shared <= A10_SHARED_BYTES
    (folder / "kernel.ptx").write_text(made.asm["ptx"])
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    messages = subprocess.run(
        [assembler, "-v", "-arch", "sm_86", folder / "kernel.ptx", "-o", folder / "kernel.cubin"],
        capture_output=True, text=True, timeout=300, check=True,
    ).stderr  # fmt: skip
    (spilled,) = re.findall(r"(\d+) bytes spill stores", messages)
    assert int(spilled) <= max_spilled_bytes, messages
    return made
