"""Telemetry of a trial: starts the sampler and summarizes its rows afterwards.

The summary depends only on telemetry.csv and can be recomputed from a collected folder. It covers the rows of the phase
`measure`, or all rows of a trial without that phase; its context names the window.
"""

import contextlib
import csv
import itertools
import os
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from bench.harness.record import Clock, Record, Request
from bench.harness.termination import StopSignals, name_node
from bench.machine import nvml
from bench.machine.fingerprint import import_path
from bench.machine.preflight import describe_process
from bench.machine.sampler import COLUMNS, NONE, UNKNOWN
from bench.records import Trial, bootstrap
from bench.records.bootstrap import Interval
from bench.records.paths import TELEMETRY_FILE
from bench.records.result import Measurement
from bench.records.status import Outcome, ReasonCode
from bench.records.units import format_percent

STOP_TIMEOUT_SEC = 3.0
MEASURE_PHASE = "measure"
SUMMARY_COLUMNS = (
    "gpu_utilization_percent",
    "gpu_memory_used_bytes",
    "gpu_power_watts",
    "gpu_sm_clock_mhz",
    "gpu_temperature_celsius",
    "process_cpu_percent",
    "process_rss_bytes",
)
# A smaller share of slowed samples cannot change a median.
SLOWDOWN_SHARE = 0.01
MAX_BLOCKS, MIN_BLOCKS, BLOCK_SAMPLES = 30, 5, 5

Row: TypeAlias = dict[str, str]


@contextlib.contextmanager
def record_telemetry(record: Record, stops: StopSignals | None = None) -> Iterator[None]:
    """Sample during the block, then add summary, flags and the GPUs' health to the record.

    A fault of a GPU becomes the record's `gpu_fault` and stops the trial by `stops`. A failure of the sampler does not.
    """
    path = record.request.out / TELEMETRY_FILE
    sampler = _start_sampler(record, path)
    if sampler is None:
        yield
        return
    health = _HealthReader(record, sampler, stops)
    phases = sampler.stdin.fileno() if sampler.stdin is not None else -1
    os.set_blocking(phases, False)  # a sampler that hangs in the driver must not hang the trial

    def on_phase(phase: str) -> None:
        """Pass on each phase that begins, and "" between phases."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):  # it ended: `_stop_sampler` logs the reason
            os.write(phases, f"{phase}\n".encode())

    record.on_phase = on_phase
    try:
        yield
    finally:
        record.on_phase = None
        _stop_sampler(record, sampler)
        health.join()
    record.observed, flags = summarize_rows(read_rows(path))
    record.flags += [flag for flag in flags if flag not in record.flags]


@contextlib.contextmanager
def watch_gpus(request: Request, trial: Trial, stops: StopSignals) -> Iterator[None]:
    """Watch the GPUs of a training's further machine; a fault stops its ranks."""
    if not nvml.visible_gpus():
        yield
        return
    record = Record(request, trial, Clock())
    sampler = _start_sampler(record, Path(os.devnull))
    health = None if sampler is None else _HealthReader(record, sampler, stops)
    try:
        yield
    finally:
        if sampler is not None and health is not None:
            _stop_sampler(record, sampler)
            health.join()


class _HealthReader(threading.Thread):
    """Thread that reads the fault of a GPU from the sampler; it is blocked in the read until then."""

    def __init__(self, record: Record, sampler: subprocess.Popen[bytes], stops: StopSignals | None) -> None:
        super().__init__(daemon=True, name="gpu health")
        if sampler.stdout is None:
            raise ValueError("the sampler was started with pipes")
        self._record, self._lines, self._stops = record, sampler.stdout, stops
        self.start()

    def run(self) -> None:
        with self._lines:
            for line in self._lines:
                fault = name_node(line.decode(errors="replace").strip())
                self._record.gpu_fault = Outcome.of(ReasonCode.GPU_FAULT, fault)
                self._record.log(f"GPU fault: {fault}")
                if self._stops is not None:
                    self._stops.request(ReasonCode.GPU_FAULT, fault)


def _start_sampler(record: Record, path: Path) -> subprocess.Popen[bytes] | None:
    argv = (
        *(sys.executable, "-m", "bench.machine.sampler", "--root", str(os.getpid())),
        *("--started", repr(record.clock.started), "--gpus", str(record.trial.world_size), "--out", str(path)),
    )
    try:
        return subprocess.Popen(
            argv,
            env={**os.environ, "PYTHONPATH": import_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # it outlives a signal to the trial's process group
        )
    except OSError as error:
        record.log(f"telemetry: the sampler cannot be started: {error.strerror}; continuing without it")
        return None


def _stop_sampler(record: Record, sampler: subprocess.Popen[bytes]) -> None:
    if sampler.stdin is None or sampler.stderr is None:
        raise ValueError("the sampler was started with pipes")
    sampler.stdin.close()
    with sampler.stderr:
        try:
            sampler.wait(STOP_TIMEOUT_SEC)
        except subprocess.TimeoutExpired:
            sampler.kill()
            record.log(f"telemetry: the sampler did not end within {STOP_TIMEOUT_SEC:g} s and was killed")
            return
        errors = sampler.stderr.read()
    if sampler.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        record.log(f"telemetry: stopped early: {lines[-1] if lines else f'exit {sampler.returncode}'}")


def read_rows(path: Path) -> list[Row]:
    """Read the complete rows of a telemetry.csv, without one truncated by a kill or a full disk."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            lines = [line for line in file if line.endswith("\n")]
    except OSError:
        return []
    fields = [cells for cells in csv.reader(lines) if len(cells) == len(COLUMNS)]
    return [dict(zip(COLUMNS, cells, strict=True)) for cells in fields[1:]]


def summarize_rows(rows: Sequence[Row]) -> tuple[list[Measurement], list[str]]:
    """Return means over the measured window with their intervals, and flags."""
    window = [row for row in rows if row["phase"] == MEASURE_PHASE]
    context = {"window": MEASURE_PHASE if window else "trial"}
    window = window or list(rows)
    measurements = []
    for name in SUMMARY_COLUMNS:
        values = [float(row[name]) for row in window if row[name]]
        if values:
            value = sum(values) / len(values)
            measurements.append(Measurement(name=name, value=value, interval=mean_interval(values), context=context))
    capped = _limited_share(window, {nvml.POWER_CAP})
    if capped is not None:
        measurements.append(Measurement(name="gpu_power_capped_percent", value=100.0 * capped, context=context))
    return measurements, [*_slowdown_flags(window), *_other_process_flags(window)]


def mean_interval(values: list[float]) -> Interval | None:
    """Compute the interval of a mean of correlated samples; None for fewer than 25.

    Neighbouring samples are not independent, so the bootstrap uses the means of consecutive blocks (batch means;
    Law and Kelton, Simulation Modeling and Analysis): n counts blocks.
    """
    blocks = min(MAX_BLOCKS, len(values) // BLOCK_SAMPLES)
    if blocks < MIN_BLOCKS:
        return None
    edges = [len(values) * number // blocks for number in range(blocks + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]
    _, low_end, high_end = bootstrap.mean_interval(means, 0.0)
    return Interval(median=statistics.median(means), low=low_end, high=high_end, n=blocks)


def _limited_share(rows: Sequence[Row], names: set[str]) -> float | None:
    known = [row for row in rows if row["gpu_clock_limits"]]
    return sum(not names.isdisjoint(row["gpu_clock_limits"].split()) for row in known) / len(known) if known else None


def _slowdown_flags(rows: Sequence[Row]) -> list[str]:
    """Flag heat and weak power; a power cap is normal for many cards at full load."""
    flags = []
    for name in nvml.SLOWDOWNS.values():
        share = _limited_share(rows, {name})
        if share is not None and share >= SLOWDOWN_SHARE:
            flags.append(f"throttled: {name} in {format_percent(share)} of samples")
    return flags


def _other_process_flags(rows: Sequence[Row]) -> list[str]:
    """Return one flag per foreign process, with the most memory it used."""
    max_bytes: Counter[int] = Counter()
    for row in rows:
        if row["gpu_other_processes"] not in ("", NONE, UNKNOWN):
            for word in row["gpu_other_processes"].split():
                pid, _, used = word.partition(":")
                max_bytes[int(pid)] = max(max_bytes[int(pid)], int(used))
    return [f"{describe_process(pid, used)} was on the GPU" for pid, used in max_bytes.items()]
