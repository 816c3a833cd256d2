"""What the makers publish about their chips, from gpu_specs.json: the ceilings that measured numbers are compared with.

Dense figures only: where a data sheet prints the figure with 2:4 structured sparsity, which no layer here uses, half of
it is listed and `source` says so. Matrix figures are those with 32-bit accumulation (int32 for int8), which is what
torch asks of the tensor cores. A figure that the document does not print is left out.

Matching is exact: an A100 is no A10, a laptop's RTX 4090 is another chip, and a slice of an A100 (`... MIG 1g.5gb`) has
other figures than the whole one. An A10G is no A10 either: more FP32, a little over half of the tensor cores' rate; its
TF32 and int8 are missing because the documents that quote its sheet do not quote them. A name that is not listed has no
figures: none is guessed.

Not covered: how a lower power cap or clock reduces these figures; the link between host and device.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
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
        figure: float | None = getattr(self, dtype)
        return figure


_TABLE = Path(__file__).with_name("gpu_specs.json")
CHIPS = tuple(GpuSpec(**entry) for entry in json.loads(_TABLE.read_text(encoding="utf-8")))


def lookup(name: str | None) -> GpuSpec | None:
    """The chip with this torch.cuda.get_device_name; None for one that is not listed, and for no GPU."""
    if name is None:
        return None
    bare = name.strip().removeprefix("NVIDIA ")
    return next((chip for chip in CHIPS if re.fullmatch(chip.names, bare)), None)


def share_percent(measured: float | None, published: float | None) -> float | None:
    """The measured figure in percent of the published one; None where either is unknown."""
    return None if measured is None or published is None else 100.0 * measured / published
