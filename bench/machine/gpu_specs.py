"""Published figures of GPUs, from gpu_specs.json: the ceilings for measured numbers.

Figures are dense: if a data sheet prints a figure with 2:4 structured sparsity, which no layer here uses, half of it is
listed and `source` says so. Matrix figures are those with 32-bit accumulation (int32 for int8), which torch uses. A
figure that the document does not print is missing.

Matching is exact: a laptop's RTX 4090 is a different chip, and a slice of an A100 (`... MIG 1g.5gb`) has other figures
than the whole GPU. An A10G differs from an A10: a little over half of the tensor cores' rate; its int8 is missing
because the documents that quote its sheet do not quote it. An unlisted name has no figures.

Not covered: how a lower power cap or clock reduces these figures; the link between host and device.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """Published figures: TFLOP/s (int8: TOP/s), dense; GB/s and GB as printed, in units of 10^9 bytes.

    `names` is a regular expression for the whole name from torch.cuda.get_device_name without the prefix "NVIDIA ".
    """

    names: str
    source: str
    bf16: float | None = None
    int8: float | None = None
    memory_gb_per_sec: float
    memory_gb: int

    def matmul_tflops(self, dtype: str) -> float | None:
        """Return the figure for bf16 or int8; None for another type, and if the document has none."""
        return {"bf16": self.bf16, "int8": self.int8}.get(dtype)


_TABLE = Path(__file__).with_name("gpu_specs.json")
CHIPS = tuple(GpuSpec(**entry) for entry in json.loads(_TABLE.read_text(encoding="utf-8")))


def lookup(name: str | None) -> GpuSpec | None:
    """Find the chip with this torch.cuda.get_device_name; None for an unlisted one and without a GPU."""
    if name is None:
        return None
    bare = name.strip().removeprefix("NVIDIA ")
    return next((chip for chip in CHIPS if re.fullmatch(chip.names, bare)), None)


def share_percent(measured: float | None, published: float | None) -> float | None:
    """Return the measured figure in percent of the published one; None if either is unknown."""
    return None if measured is None or published is None else 100.0 * measured / published
