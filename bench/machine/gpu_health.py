"""Health of the GPUs during a trial: ECC errors, remapped rows, XID events, a lost GPU, and the PCIe link.

`HealthMonitor` compares each reading with the first one. After a fault results cannot be trusted: an XID event that an
application cannot cause, an uncorrected ECC error during the trial, a row whose remapping failed or waits for a reset,
a GPU that the driver has lost. Corrected errors and the PCIe link are only facts.

Not covered: events before the monitor was made, which NVML does not keep; GPUs split by MIG; cards other than NVIDIA's.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.machine.nvml import Gpu, GpuHealth

# XIDs that a program can cause; the others are the hardware's or the driver's. The list is that of NVIDIA's Kubernetes
# device plugin (internal/rm/health.go), which takes a GPU out of service for any other.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
XID_MEANINGS = {
    48: "uncorrected ECC error",
    63: "a row was remapped after an ECC error",
    64: "a row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
}
LOW_LINK_SHARE = 0.5  # a link with at most this part of its lanes slows copies down


def _faults(first: GpuHealth, last: GpuHealth) -> list[str]:
    """Describe the faults of a reading, compared with the first one of the trial."""
    faults = ["the driver has lost it"] if last.is_lost else []
    if (errors := (last.ecc_uncorrected or 0) - (first.ecc_uncorrected or 0)) > 0:
        faults.append(f"{errors} uncorrected ECC error{'s' if errors > 1 else ''}")
    if last.is_remap_failed:
        faults.append("a row of its memory could not be remapped")
    elif last.is_remap_pending:
        faults.append("a row of its memory waits for a reset to be remapped")
    return faults


def describe_xid(xid: int) -> str:
    return f"XID {xid}" + (f" ({XID_MEANINGS[xid]})" if xid in XID_MEANINGS else "")


class HealthMonitor:
    """Monitor of the trial's GPUs from now on."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = list(gpus)
        self._names = [f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "") for gpu in gpus]
        self._events = [gpu.xid_events() for gpu in gpus]
        self._xids: list[list[int]] = [[] for _ in gpus]
        self._first = self._last = [gpu.health() for gpu in gpus]
        self._link = [self._lanes(health) for health in self._first]

    def read(self) -> str | None:
        """Read all GPUs. Returns the faults of the first GPU that has any, in one line; None without a fault."""
        self._last = [gpu.health() for gpu in self._gpus]
        self._link = [max(known, self._lanes(health)) for known, health in zip(self._link, self._last, strict=True)]
        for index, events in enumerate(self._events):
            self._xids[index] += events.drain()
        for index, name in enumerate(self._names):
            hardware = dict.fromkeys(xid for xid in self._xids[index] if xid not in APPLICATION_XIDS)
            faults = [*map(describe_xid, hardware), *_faults(self._first[index], self._last[index])]
            if faults:
                return f"{name}: {', '.join(faults)}"
        return None

    def facts(self) -> dict[str, Any]:
        """Return facts for the fingerprint: sums over the GPUs, the narrowest PCIe link; None if unknown."""
        if not self._gpus:
            return {}
        link = min(zip(self._link, self._last, strict=True), key=lambda pair: pair[0])
        generation, lanes = link[0]
        return {
            **{f"gpu_{name}_at_start": _total(self._first, name) for name in _COUNTERS},
            **{f"gpu_{name}_at_end": _total(self._last, name) for name in _COUNTERS},
            "gpu_remap_pending": any(health.is_remap_pending for health in self._last),
            "gpu_xids": sorted({xid for xids in self._xids for xid in xids}),
            "gpu_pcie_generation": generation or None,
            "gpu_pcie_lanes": lanes or None,
            "gpu_pcie_generation_max": link[1].pcie_generation_max,
            "gpu_pcie_lanes_max": link[1].pcie_lanes_max,
        }

    @staticmethod
    def _lanes(health: GpuHealth) -> tuple[int, int]:
        # An idle GPU lowers generation and lanes to save power: the highest reading counts.
        return (health.pcie_generation or 0, health.pcie_lanes or 0)


_COUNTERS = ("ecc_corrected", "ecc_uncorrected", "rows_remapped")


def _total(readings: Sequence[GpuHealth], name: str) -> int | None:
    values = [value for health in readings if (value := dataclasses.asdict(health)[name]) is not None]
    return sum(values) if values else None


def link_flag(facts: dict[str, Any]) -> str | None:
    """Return a flag for a PCIe link with at most half of its lanes; None otherwise or if unknown."""
    lanes, most = facts.get("gpu_pcie_lanes"), facts.get("gpu_pcie_lanes_max")
    if lanes and most and lanes <= LOW_LINK_SHARE * most:
        return f"PCIe link: {lanes} of {most} lanes"
    return None
