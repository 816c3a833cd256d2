"""What the makers print about their chips: the ceilings that measured numbers are read against.

Dense figures only: where a data sheet prints the figure with 2:4 structured sparsity, which no layer here uses, half of
it stands here and `source` says so. Matrix figures are those with 32-bit accumulation (int32 for int8), which is what
torch asks of the tensor cores. A figure that the document does not print is None.

Matching is exact: an A100 is no A10, a laptop's RTX 4090 is another chip, and a slice of an A100 (`... MIG 1g.5gb`) has
not the whole one's figures. A name that is not listed has no figures: none is guessed.

Not covered: what a lower power cap or clock leaves of these figures; the link between host and device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPARSE = ", half of what it prints with sparsity"


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Published figures: TFLOP/s (int8: TOP/s), dense; GB/s and GB as printed, in units of 10^9 bytes.

    `names` is matched against the whole of what torch.cuda.get_device_name says, without the maker's "NVIDIA ".
    """

    names: str
    source: str
    fp32: float
    fp16: float
    tf32: float | None = None
    bf16: float | None = None
    int8: float | None = None
    fp8: float | None = None
    memory_gb_per_sec: float
    memory_gb: int

    def matmul_tflops(self, dtype: str) -> float | None:
        """The figure for fp32, tf32, bf16, fp16, int8 or fp8; None where the document prints none."""
        figures = {
            "fp32": self.fp32,
            "tf32": self.tf32,
            "bf16": self.bf16,
            "fp16": self.fp16,
            "int8": self.int8,
            "fp8": self.fp8,
        }
        return figures[dtype]


def _ga100(names: str, memory_gb_per_sec: float, memory_gb: int, source: str) -> Chip:
    return Chip(
        names=names,
        source=source,
        fp32=19.5,
        fp16=312.0,
        tf32=156.0,
        bf16=312.0,
        int8=624.0,
        memory_gb_per_sec=memory_gb_per_sec,
        memory_gb=memory_gb,
    )


def _hopper_sxm(names: str, memory_gb_per_sec: float, memory_gb: int, source: str) -> Chip:
    return Chip(
        names=names,
        source=source,
        fp32=67.0,
        fp16=989.5,
        tf32=494.5,
        bf16=989.5,
        int8=1979.0,
        fp8=1979.0,
        memory_gb_per_sec=memory_gb_per_sec,
        memory_gb=memory_gb,
    )


def _volta(names: str, fp32: float, fp16: float, memory_gb_per_sec: float, memory_gb: int, source: str) -> Chip:
    return Chip(
        names=names,
        source=source,
        fp32=fp32,
        fp16=fp16,
        memory_gb_per_sec=memory_gb_per_sec,
        memory_gb=memory_gb,
    )


_A100_40 = "NVIDIA A100 Tensor Core GPU datasheet (2020, A100 40GB)"
_A100_80 = "NVIDIA A100 Tensor Core GPU datasheet (1758950-r4, June 2021, A100 80GB)"
_V100 = "NVIDIA V100 Tensor Core GPU datasheet (January 2020)"

CHIPS: tuple[Chip, ...] = (
    Chip(
        names=r"A10",
        source="NVIDIA A10 Tensor Core GPU datasheet (2021)",
        fp32=31.2,
        fp16=125.0,
        tf32=62.5,
        bf16=125.0,
        int8=250.0,
        memory_gb_per_sec=600.0,
        memory_gb=24,
    ),
    # Not the A10 under another name: more of its FP32 rate, a little over half of its tensor cores'. TF32 and int8 are
    # left out: what was read are others who quote the sheet, and none of them quotes these two.
    Chip(
        names=r"A10G",
        source="NVIDIA A10G Tensor Core GPU datasheet (published by AWS, February 2022)",
        fp32=35.0,
        fp16=70.0,
        bf16=70.0,
        memory_gb_per_sec=600.0,
        memory_gb=24,
    ),
    _ga100(r"A100-(SXM4|PCIE)-40GB", 1555.0, 40, _A100_40),
    _ga100(r"A100-SXM4-80GB", 2039.0, 80, _A100_80),
    _ga100(r"A100 80GB PCIe", 1935.0, 80, _A100_80),
    Chip(
        names=r"L4",
        source=f"NVIDIA L4 Tensor Core GPU datasheet (2023){_SPARSE}",
        fp32=30.3,
        fp16=121.0,
        tf32=60.0,
        bf16=121.0,
        int8=242.5,
        fp8=242.5,
        memory_gb_per_sec=300.0,
        memory_gb=24,
    ),
    Chip(
        names=r"L40S",
        source="NVIDIA L40S datasheet (2023)",
        fp32=91.6,
        fp16=362.05,
        tf32=183.0,
        bf16=362.05,
        int8=733.0,
        fp8=733.0,
        memory_gb_per_sec=864.0,
        memory_gb=48,
    ),
    _hopper_sxm(r"H100 80GB HBM3", 3350.0, 80, f"NVIDIA H100 Tensor Core GPU datasheet (2023, H100 SXM){_SPARSE}"),
    Chip(
        names=r"H100 PCIe",
        source=f"NVIDIA H100 Tensor Core GPU datasheet (2023, H100 PCIe){_SPARSE}; memory: product brief PB-11133-001",
        fp32=51.0,
        fp16=756.5,
        tf32=378.0,
        bf16=756.5,
        int8=1513.0,
        fp8=1513.0,
        memory_gb_per_sec=2000.0,
        memory_gb=80,
    ),
    _hopper_sxm(r"H200", 4800.0, 141, f"NVIDIA H200 Tensor Core GPU datasheet (2024, H200 SXM){_SPARSE}"),
    _volta(r"Tesla V100-SXM[23]-16GB", 15.7, 125.0, 900.0, 16, _V100),
    _volta(r"Tesla V100-SXM[23]-32GB", 15.7, 125.0, 900.0, 32, _V100),
    _volta(r"Tesla V100-PCIE-16GB", 14.0, 112.0, 900.0, 16, _V100),
    _volta(r"Tesla V100-PCIE-32GB", 14.0, 112.0, 900.0, 32, _V100),
    Chip(
        names=r"Tesla T4|T4",
        source="NVIDIA T4 datasheet (2019); memory: NVIDIA T4 product brief PB-09256",
        fp32=8.1,
        fp16=65.0,
        int8=130.0,
        memory_gb_per_sec=320.0,
        memory_gb=16,
    ),
    Chip(
        names=r"GeForce RTX 4090",
        source="NVIDIA Ada GPU architecture whitepaper (2022), appendix A, figures with FP32 accumulation",
        fp32=82.6,
        fp16=165.2,
        tf32=82.6,
        bf16=165.2,
        int8=660.6,
        fp8=330.3,
        memory_gb_per_sec=1008.0,
        memory_gb=24,
    ),
)


def lookup(name: str | None) -> Chip | None:
    """The chip of that name, as torch.cuda.get_device_name says it; None for one that is not listed, and for no GPU."""
    if name is None:
        return None
    bare = name.strip().removeprefix("NVIDIA ")
    return next((chip for chip in CHIPS if re.fullmatch(chip.names, bare)), None)


def share_percent(measured: float | None, published: float | None) -> float | None:
    """What part of the published figure was measured; None where either is unknown."""
    return None if measured is None or published is None else 100.0 * measured / published
