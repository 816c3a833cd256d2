"""Sampler process of a trial: samples GPU and host five times a second and writes telemetry.csv.

It is a process because a thread would compete with the training loop for the interpreter's lock. It reads the trial's
phases from standard input, one name per line, and ends when that closes, which also happens when the trial is killed.
It ignores signals, so that an interrupted trial has its telemetry.

Rows are flushed once a second and at each phase's end. A full disk ends the sampling with one line, never the trial.
Times are seconds of the monotonic clock, which all processes of a machine share.

It also watches the GPUs' health (`bench.machine.gpu_health`). As soon as a GPU shows a fault, it writes that for the
trial on standard output, as a line.

Not covered: CPU time of children that start and end between two listings of the process tree (2 s apart). Resident
memory counts a shared page once per process.
"""

import argparse
import csv
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from bench.machine import nvml
from bench.machine.gpu_health import HealthMonitor

SAMPLE_INTERVAL_SEC = 0.2
FLUSH_INTERVAL_SEC = 1.0
PROCESS_LIST_INTERVAL_SEC = 1.0  # listing processes costs the driver more than all other readings together
TREE_INTERVAL_SEC = 2.0
HEALTH_INTERVAL_SEC = 2.0
LAST_EVENT_SEC = 0.2  # the driver reports an XID a moment after the kernel that met the error has failed
MIN_INTERVAL_SEC = 0.05  # the kernel's ticks (10 ms) are too coarse for a shorter interval
COLUMNS = (
    "elapsed_sec",
    "phase",
    "gpu",
    "gpu_utilization_percent",
    "gpu_memory_used_bytes",
    "gpu_power_watts",
    "gpu_sm_clock_mhz",
    "gpu_temperature_celsius",
    "gpu_clock_limits",  # names separated by spaces; "none"; empty if unknown
    "gpu_other_processes",  # pid:bytes separated by spaces; "none"; "unknown" if the pids cannot be distinguished
    "process_cpu_percent",  # percent of one core, over the process tree without this sampler
    "process_rss_bytes",
)
UNKNOWN, NONE = "unknown", "none"
# Inode of the host's process namespace, equal on every Linux. The library reports pids of that namespace.
HOST_PID_NAMESPACE = 0xEFFFFFFC


class HostSampler:
    """CPU time and memory of a process tree, from /proc; None without /proc."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks_per_sec, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._tree_at = float("-inf")
        self._before: tuple[float, dict[int, int]] | None = None
        self.tree: tuple[int, ...] = (root,)

    def read(self) -> tuple[float | None, int | None]:
        """Return the percent of one core since the last call (None at first), and resident bytes."""
        now = time.monotonic()
        if now - self._tree_at >= TREE_INTERVAL_SEC:
            self.tree, self._tree_at = process_tree(self._root, excluded_pid=os.getpid()), now
        ticks: dict[int, int] = {}
        pages = 0
        for pid in self.tree:
            try:
                stat = Path(f"/proc/{pid}/stat").read_bytes()
                resident = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
            except OSError:  # the process ended meanwhile
                continue
            user, system = stat[stat.rindex(b")") :].split()[12:14]  # the process name before it may contain spaces
            ticks[pid] = int(user) + int(system)
            pages += resident
        if not ticks:
            return None, None
        percent = None
        if self._before is not None and now - self._before[0] >= MIN_INTERVAL_SEC:
            spent = sum(count - self._before[1].get(pid, count) for pid, count in ticks.items())
            percent = 100.0 * spent / self._ticks_per_sec / (now - self._before[0])
        if self._before is None or percent is not None:
            self._before = (now, ticks)
        return percent, pages * self._page


def other_processes(gpu: nvml.Gpu, ours: frozenset[int]) -> str:
    """Return the other processes on a GPU as in the column; UNKNOWN if they cannot be distinguished."""
    on_it = gpu.processes()
    # In a container the library may report the host's pids, which do not match ours.
    if on_it is None or (ours.isdisjoint(on_it) and not sees_host_pids()):
        return UNKNOWN
    others = {pid: held for pid, held in on_it.items() if pid not in ours}
    return " ".join(f"{pid}:{held or 0}" for pid, held in sorted(others.items())) or NONE


def sees_host_pids() -> bool:
    """Return True if this process sees the host's pids, which the library reports."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE
    except OSError:
        return False


def process_tree(root: int, *, excluded_pid: int) -> tuple[int, ...]:
    """Return the pids of `root` and its descendants, except `excluded_pid`, from /proc."""
    pids, pending = [root], [root]
    while pending:
        for path in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            try:
                children = [int(word) for word in path.read_bytes().split()]
            except OSError:  # the thread or process ended meanwhile
                continue
            new_pids = [pid for pid in children if pid != excluded_pid and pid not in pids]
            pids += new_pids
            pending += new_pids
    return tuple(pids)


class Sampler:
    """Source of rows with GPU, host and phase. `started` is the trial's start on the monotonic clock."""

    def __init__(self, *, root: int, gpus: Sequence[nvml.Gpu], started: float) -> None:
        self._started, self._gpus, self._host = started, gpus, HostSampler(root)
        self._listed_at = float("-inf")
        self._others: dict[int, str] = {}
        self.phase = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per GPU, or one row without a GPU."""
        percent, resident = self._host.read()
        now = time.monotonic()
        if now - self._listed_at >= PROCESS_LIST_INTERVAL_SEC:
            self._listed_at, ours = now, frozenset(self._host.tree)
            self._others = {gpu.index: other_processes(gpu, ours) for gpu in self._gpus}
        common: dict[str, Any] = {
            "elapsed_sec": round(now - self._started, 3),
            "phase": self.phase,
            "process_cpu_percent": None if percent is None else round(percent, 1),
            "process_rss_bytes": resident,
        }
        return [common | self._gpu_columns(gpu) for gpu in self._gpus] or [common]

    def _gpu_columns(self, gpu: nvml.Gpu) -> dict[str, Any]:
        readings = {f"gpu_{name}": value for name, value in vars(gpu.read()).items() if f"gpu_{name}" in COLUMNS}
        limits = readings["gpu_clock_limits"]
        return readings | {
            "gpu": gpu.index,
            "gpu_clock_limits": None if limits is None else " ".join(limits) or NONE,
            "gpu_other_processes": self._others[gpu.index],
        }


class HealthReporter:
    """Writer of the first fault of the GPUs on standard output, for the trial."""

    def __init__(self, gpus: Sequence[nvml.Gpu]) -> None:
        self._monitor = HealthMonitor(gpus) if gpus else None
        self._next_at = float("-inf")

    def update(self, *, is_last: bool = False) -> None:
        """Read the GPUs if it is time or the last time, and report a fault."""
        if self._monitor is None or (time.monotonic() < self._next_at and not is_last):
            return
        if is_last:
            time.sleep(LAST_EVENT_SEC)
        self._next_at = time.monotonic() + HEALTH_INTERVAL_SEC
        if (fault := self._monitor.read()) is not None:
            self._monitor = None
            try:
                print(fault, flush=True)
            except OSError:  # the trial was killed; the exit would flush the broken pipe again
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sample_until_closed(sampler: Sampler, file: TextIO, health: HealthReporter, phases: int) -> None:
    """Sample into `file` until `phases`, a descriptor with one phase name per line, closes. Raises its OSError.

    A row that a kill cuts short is left out by its reader.
    """
    table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    table.writeheader()
    file.flush()
    next_at = flushed_at = time.monotonic()
    last_at, rest = float("-inf"), b""
    while True:
        is_ready = select.select([phases], [], [], max(0.0, next_at - time.monotonic()))[0]
        now = time.monotonic()
        if not is_ready or now - last_at >= MIN_INTERVAL_SEC:  # a row for the end of the phase
            table.writerows(sampler.rows())
            last_at = now
            next_at = max(next_at + SAMPLE_INTERVAL_SEC, now) if now >= next_at else next_at
            health.update()
        if is_ready:
            piece = os.read(phases, 4096)
            *lines, rest = (rest + piece).split(b"\n")
            if lines:
                sampler.phase = lines[-1].decode(errors="replace")
            if not piece:
                file.flush()
                return
        if is_ready or now - flushed_at >= FLUSH_INTERVAL_SEC:
            file.flush()
            flushed_at = now


def main() -> int:
    """Run `python -m bench.machine.sampler`, as `bench.machine.telemetry` does."""
    parser = argparse.ArgumentParser(prog="python -m bench.machine.sampler")
    parser.add_argument("--root", type=int, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        with arguments.out.open("w", encoding="utf-8", newline="") as file:
            gpus = nvml.visible_gpus()[: arguments.gpus]
            sampler = Sampler(root=arguments.root, gpus=gpus, started=arguments.started)
            health = HealthReporter(gpus)
            sample_until_closed(sampler, file, health, sys.stdin.fileno())
            health.update(is_last=True)
    except OSError as error:
        print(f"{arguments.out}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
