"""CPU contention of a trial: the share of a window in which its longest-waiting thread was runnable and had no CPU.

Linux counts the wait of each thread in schedstat (Documentation/scheduler/sched-stats.rst), that for a container's
exhausted quota, too. All threads of the trial and of its child processes are read: on a GPU a separate thread launches
the backward pass. Threads wait in parallel, so the longest wait is a lower bound of the trial's delay. A trial with
more threads than CPUs waits too.

Not covered: a slow CPU (clock, hyperthreading, memory bandwidth, a hypervisor's other machines); threads that started
or ended within the window; machines of a distributed trial other than the first.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine.sampler import process_tree

PROC = Path("/proc")
# A result above the first level is flagged (docs/measurements.md has the trials behind this choice). A flag names the
# highest level exceeded, so that trials with about the same disturbance share a line of the report.
LEVELS_PERCENT = (5, 10, 20, 50)


@dataclass(frozen=True, kw_only=True)
class CpuWaits:
    """The waits at one moment by (pid, thread), in nanoseconds; a pair without counters is missing."""

    at_sec: float
    waited_ns: dict[tuple[int, int], int] = field(default_factory=dict)

    def percent_until(self, after: "CpuWaits") -> float | None:
        """Return the longest wait until a later reading, in percent of the time; None if the system counts none."""
        window_ns = 1e9 * (after.at_sec - self.at_sec)
        threads = self.waited_ns.keys() & after.waited_ns.keys()
        longest = max((after.waited_ns[thread] - self.waited_ns[thread] for thread in threads), default=None)
        return None if longest is None or window_ns <= 0 else min(100.0, 100.0 * longest / window_ns)


def read_waits(root: int, *, excluded_pid: int) -> CpuWaits:
    """Read the counters of `root` and its descendants, except `excluded_pid`. Raises OSError."""
    at_sec, waited_ns = time.monotonic(), {}
    for pid in process_tree(root, excluded_pid=excluded_pid):
        for path in PROC.glob(f"{pid}/task/*/schedstat"):
            try:
                _, waited, turns = (int(field) for field in path.read_bytes().split())
            except (OSError, ValueError):  # the thread ended meanwhile
                continue
            if turns:  # a kernel without these counters reports 0 for every thread
                waited_ns[pid, int(path.parent.name)] = waited
    return CpuWaits(at_sec=at_sec, waited_ns=waited_ns)


def contention_flag(percent: float | None) -> str | None:
    """Return a flag with a remedy; None for a wait below the first level."""
    passed = [level for level in LEVELS_PERCENT if percent is not None and percent > level]
    if not passed:
        return None
    return (
        f"CPU contention: the trial waited for a CPU over {passed[-1]} % of the measured time; stop other programs, "
        "lower fleet.size, or raise the container's CPU limit (in a pod resources.limits.cpu)"
    )
