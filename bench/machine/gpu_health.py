"""Health of the GPUs during a trial: ECC errors, remapped rows, XID events, a lost GPU.

`HealthMonitor` compares each reading with the first one. After a fault results cannot be trusted: an XID event that an
application cannot cause, an uncorrected ECC error during the trial, a row whose remapping failed or waits for a reset,
a GPU that the driver has lost.

Not covered: events before the monitor was made, which NVML does not keep; GPUs split by MIG; cards other than NVIDIA's.
"""

from collections.abc import Sequence

from bench.machine.nvml import Gpu

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


def _faults(gpu: Gpu, earlier_errors: int) -> list[str]:
    """Describe the faults of a GPU that had so many ECC errors when the trial began."""
    faults = ["the driver has lost it"] if gpu.is_lost() else []
    if (errors := gpu.uncorrected_errors() - earlier_errors) > 0:
        faults.append(f"{errors} uncorrected ECC error{'s' if errors > 1 else ''}")
    is_pending, has_failed = gpu.remaps()
    if has_failed:
        faults.append("a row of its memory could not be remapped")
    elif is_pending:
        faults.append("a row of its memory waits for a reset to be remapped")
    return faults


def describe_xid(xid: int) -> str:
    return f"XID {xid}" + (f" ({XID_MEANINGS[xid]})" if xid in XID_MEANINGS else "")


class HealthMonitor:
    """Monitor of the trial's GPUs from now on."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        names = [f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "") for gpu in gpus]
        first = [(gpu.xid_events(), gpu.uncorrected_errors()) for gpu in gpus]
        self._watched = list(zip(names, gpus, first, strict=True))

    def read(self) -> str | None:
        """Read all GPUs. Returns the faults of the first GPU that has any, in one line; None without a fault."""
        for name, gpu, (events, errors) in self._watched:
            hardware = dict.fromkeys(xid for xid in events.drain() if xid not in APPLICATION_XIDS)
            if faults := [*map(describe_xid, hardware), *_faults(gpu, errors)]:
                return f"{name}: {', '.join(faults)}"
        return None
