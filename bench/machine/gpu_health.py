"""Health of the GPUs during a trial: ECC errors, remapped rows, XID events, a lost GPU.

`HealthMonitor` compares each reading with the first one. After a fault results cannot be trusted: an XID event that an
application cannot cause, an uncorrected ECC error during the trial, a row whose remapping failed or waits for a reset,
a GPU that the driver has lost.

Not covered: events before the monitor was made, which NVML does not keep; GPUs split by MIG; cards other than NVIDIA's.
"""

from collections.abc import Sequence

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
        names = [f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "") for gpu in gpus]
        self._watched = [(name, gpu, gpu.xid_events(), gpu.health()) for name, gpu in zip(names, gpus, strict=True)]

    def read(self) -> str | None:
        """Read all GPUs. Returns the faults of the first GPU that has any, in one line; None without a fault."""
        for name, gpu, events, first in self._watched:
            hardware = dict.fromkeys(xid for xid in events.drain() if xid not in APPLICATION_XIDS)
            if faults := [*map(describe_xid, hardware), *_faults(first, gpu.health())]:
                return f"{name}: {', '.join(faults)}"
        return None
