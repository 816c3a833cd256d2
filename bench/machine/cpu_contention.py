"""CPU contention of a trial: Linux counters read at both ends of the measured window.

| number | meaning | from |
|---|---|---|
| cpu_wait_percent | share of the window in which the longest-waiting thread was runnable and had no CPU | schedstat |
| cpu_quota_throttled_percent | share of the quota's periods in which it was exhausted | the cgroup's cpu.stat |
| cpu_steal_percent | share of the CPUs' busy time that the hypervisor gave to other machines | /proc/stat |

Sources: Documentation/scheduler/sched-stats.rst, Documentation/admin-guide/cgroup-v2.rst and proc_stat(5). All threads
of the trial and of its child processes are read: on a GPU a separate thread launches the backward pass. Threads wait in
parallel, so the longest wait is a lower bound of the trial's delay. A number that the system does not count is None. A
trial with more threads than CPUs waits too.

Not covered: a slow CPU (clock, hyperthreading, memory bandwidth); threads that started or ended within the window;
machines of a distributed trial other than the first.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine.sampler import process_tree

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# A result above the first level is flagged (docs/measurements.md has the trials behind this choice). A flag names the
# highest level exceeded, so that trials with about the same disturbance share a line of the report.
LEVELS_PERCENT = (5, 10, 20, 50)


@dataclass(frozen=True, kw_only=True)
class CpuCounters:
    """The kernel's counters at one moment. `waited_ns` is by (pid, thread); a pair without counters is None."""

    at_sec: float
    waited_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    periods_throttled: tuple[int, int] | None = None
    ticks_wanted_stolen: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class CpuContention:
    """Contention within a window; None for a number that is not counted."""

    cpu_wait_percent: float | None = None
    cpu_quota_throttled_percent: float | None = None
    cpu_steal_percent: float | None = None

    @property
    def flags(self) -> list[str]:
        """One line per cause, with the measured value and a remedy."""
        waited, throttled = _passed_level(self.cpu_wait_percent), _passed_level(self.cpu_quota_throttled_percent)
        stolen = _passed_level(self.cpu_steal_percent)
        flags = []
        if throttled and (waited or self.cpu_wait_percent is None):
            flags.append(
                f"CPU contention: the container's CPU quota was exhausted in over {throttled} % of its periods; "
                "raise the container's CPU limit (in a pod resources.limits.cpu)"
            )
        elif waited:
            flags.append(
                f"CPU contention: the trial waited for a CPU over {waited} % of the measured time; "
                "stop other programs or lower fleet.size"
            )
        if stolen:
            flags.append(
                f"CPU contention: the hypervisor gave over {stolen} % of this machine's CPU time to other machines; "
                "use a machine with dedicated CPUs"
            )
        return flags


def read_counters(root: int, *, excluded_pid: int) -> CpuCounters:
    """Read the counters of `root` and its descendants, except `excluded_pid`. Raises OSError."""
    return CpuCounters(
        at_sec=time.monotonic(),
        waited_ns=dict(_thread_waits(process_tree(root, excluded_pid=excluded_pid))),
        periods_throttled=_periods_throttled(),
        ticks_wanted_stolen=_ticks_wanted_stolen(),
    )


def contention_between(before: CpuCounters, after: CpuCounters) -> CpuContention:
    """Compute the contention between two readings."""
    window_ns = 1e9 * (after.at_sec - before.at_sec)
    threads = before.waited_ns.keys() & after.waited_ns.keys()
    longest = max((after.waited_ns[thread] - before.waited_ns[thread] for thread in threads), default=None)
    return CpuContention(
        cpu_wait_percent=None if longest is None or window_ns <= 0 else min(100.0, 100.0 * longest / window_ns),
        cpu_quota_throttled_percent=_share(before.periods_throttled, after.periods_throttled),
        cpu_steal_percent=_share(before.ticks_wanted_stolen, after.ticks_wanted_stolen),
    )


def _passed_level(percent: float | None) -> int:
    return max((level for level in LEVELS_PERCENT if percent is not None and percent > level), default=0)


def _share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Return the second count's growth in percent of the first's; None if the first did not grow."""
    if before is None or after is None or after[0] <= before[0]:
        return None
    return 100.0 * (after[1] - before[1]) / (after[0] - before[0])


def _thread_waits(pids: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], int]]:
    for pid in pids:
        for path in PROC.glob(f"{pid}/task/*/schedstat"):
            try:
                _, waited, turns = (int(field) for field in path.read_bytes().split())
            except (OSError, ValueError):  # the thread ended meanwhile
                continue
            if turns:  # a kernel without these counters reports 0 for every thread
                yield (pid, int(path.parent.name)), waited


def _periods_throttled() -> tuple[int, int] | None:
    for folder in _cgroup_folders():
        try:
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(counts["nr_periods"]), int(counts["nr_throttled"])
        except (OSError, ValueError, KeyError):  # missing, or a group that cannot have a quota
            continue
    return None


def _cgroup_folders() -> Iterator[Path]:
    """Yield possible folders of this process's cgroup, likeliest first: a container often sees its own as the root."""
    try:
        groups = [line.split(":", 2) for line in (PROC / "self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):  # a name may hold any bytes
        return
    for number, controllers, path in groups:
        if number == "0" or "cpu" in controllers.split(","):
            top = CGROUPS if number == "0" else CGROUPS / "cpu"  # version 2, version 1
            yield top / path.lstrip("/")
            yield top


def _ticks_wanted_stolen() -> tuple[int, int] | None:
    try:
        fields = (PROC / "stat").read_text().partition("\n")[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(field) for field in fields[1:9])
    except (OSError, ValueError):
        return None
    return user + nice + system + irq + softirq + stolen, stolen
