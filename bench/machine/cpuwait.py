"""Did the host keep the trial waiting for a CPU? Read at the two ends of its measured window, from what Linux counts.

| number | meaning | from |
|---|---|---|
| cpu_wait_percent | of the window, for how long the thread that waited longest was ready and had no CPU | schedstat |
| cpu_quota_throttled_percent | of the periods of the CPU quota, in how many it was used up | the cgroup's cpu.stat |
| cpu_steal_percent | of the time that the machine's CPUs had work, what the hypervisor gave to others | /proc/stat |

Sources: Documentation/scheduler/sched-stats.rst, Documentation/admin-guide/cgroup-v2.rst and proc_stat(5). The wait is
over every thread of the trial and of what it started: on a GPU the backward pass is launched by a thread of its own.
Threads wait side by side, so the longest wait is what the trial was held up at least, and never more than the window.
A number that this system does not count is None. That the trial wants more threads than it has CPUs shows the same way.

Not covered: a CPU that is had but slow (its clock, the other thread of its core, the memory's bandwidth); threads that
began or ended within the window; of a distributed trial on several machines, all but the first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine.sampler import tree_of

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Beyond the first a result is flagged (docs/measurements.md has the trials that it was chosen by); a flag names the
# highest that was passed, so that trials which were disturbed alike share a line of the report.
LEVELS_PERCENT = (5, 10, 20, 50)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the kernel had counted at one moment. `waited_ns` is by (pid, thread); the pairs are None where not told."""

    at_sec: float
    waited_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    periods_throttled: tuple[int, int] | None = None
    ticks_wanted_stolen: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The three numbers of a window, None where not counted."""

    cpu_wait_percent: float | None = None
    cpu_quota_throttled_percent: float | None = None
    cpu_steal_percent: float | None = None

    @property
    def flags(self) -> list[str]:
        """A sentence for each way in which the host disturbed: what was seen, and what to do."""
        waited, throttled = _level(self.cpu_wait_percent), _level(self.cpu_quota_throttled_percent)
        stolen = _level(self.cpu_steal_percent)
        said = []
        seen = "a thread of the trial was ready to run and had no CPU"
        if throttled and (waited or self.cpu_wait_percent is None):
            said.append(
                f"{seen}: its CPU quota was used up in over {throttled} % of the periods; "
                "raise the container's CPU limit (in a pod resources.limits.cpu)"
            )
        elif waited:
            said.append(
                f"{seen} for over {waited} % of the measured window; "
                "end what else runs on this machine, or run fewer workers or threads on it"
            )
        if stolen:
            said.append(
                f"the hypervisor gave over {stolen} % of the CPU time that this machine wanted to others; "
                "use a machine whose CPUs are its own"
            )
        return said


def read(root: int, *, leave_out: int) -> Reading:
    """What is counted now for `root` and everything it started, without `leave_out`. Raises OSError, rarely."""
    return Reading(
        at_sec=time.monotonic(),
        waited_ns=dict(_waited(tree_of(root, leave_out=leave_out))),
        periods_throttled=_periods_throttled(),
        ticks_wanted_stolen=_ticks_wanted_stolen(),
    )


def between(before: Reading, after: Reading) -> Waits:
    """The window from `before` to `after`."""
    window_ns = 1e9 * (after.at_sec - before.at_sec)
    lasting = before.waited_ns.keys() & after.waited_ns.keys()
    longest = max((after.waited_ns[thread] - before.waited_ns[thread] for thread in lasting), default=None)
    return Waits(
        cpu_wait_percent=None if longest is None or window_ns <= 0 else min(100.0, 100.0 * longest / window_ns),
        cpu_quota_throttled_percent=_share(before.periods_throttled, after.periods_throttled),
        cpu_steal_percent=_share(before.ticks_wanted_stolen, after.ticks_wanted_stolen),
    )


def _level(percent: float | None) -> int:
    return max((level for level in LEVELS_PERCENT if percent is not None and percent > level), default=0)


def _share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Percent of the first count's growth that is the second's; None where the first did not grow."""
    if before is None or after is None or after[0] <= before[0]:
        return None
    return 100.0 * (after[1] - before[1]) / (after[0] - before[0])


def _waited(pids: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], int]]:
    for pid in pids:
        for path in PROC.glob(f"{pid}/task/*/schedstat"):
            try:
                _, waited, turns = (int(word) for word in path.read_bytes().split())
            except (OSError, ValueError):  # the thread ended meanwhile
                continue
            if turns:  # a kernel that does not count says 0 of every thread
                yield (pid, int(path.parent.name)), waited


def _periods_throttled() -> tuple[int, int] | None:
    for folder in _cgroup_folders():
        try:
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(counts["nr_periods"]), int(counts["nr_throttled"])
        except (OSError, ValueError, KeyError):  # not there, or not of a group that can have a quota
            continue
    return None


def _cgroup_folders() -> Iterator[Path]:
    """Where this process's cgroup may be, the likeliest first: a container often sees its own as the top."""
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
        words = (PROC / "stat").read_text().partition("\n")[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(word) for word in words[1:9])
    except (OSError, ValueError):
        return None
    return user + nice + system + irq + softirq + stolen, stolen
