"""Telemetry of a trial: starts the sampler beside it and sums its rows up afterwards.

The summary is a function of telemetry.csv alone and can be repeated from a collected folder. It covers the rows of the
phase `measure`, or all rows of a trial that has none; its context says which. The wait for a CPU in the same window
(`bench.machine.cpu_contention`) is added to it.
"""

import contextlib
import csv
import dataclasses
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bench.harness.record import Clock, Record, Request
from bench.machine import cpu_contention, nvml, prometheus
from bench.machine.isolation import describe
from bench.machine.sampler import COLUMNS, NONE, UNKNOWN
from bench.records import Trial
from bench.records.bootstrap import Interval, summarize
from bench.records.paths import METRICS_VARIABLE, TELEMETRY_FILE
from bench.records.result import Measurement

STOP_SEC = 3.0
WINDOW = "measure"
SUMMED_UP = (
    "gpu_utilization_percent",
    "gpu_memory_used_bytes",
    "gpu_power_watts",
    "gpu_sm_clock_mhz",
    "gpu_temperature_celsius",
    "process_cpu_percent",
    "process_rss_bytes",
)
# Fewer slowed samples than one in a hundred cannot move a median.
SLOWDOWN_SHARE = 0.01
MOST_BLOCKS, FEWEST_BLOCKS, BLOCK_SAMPLES = 30, 5, 5

Row: TypeAlias = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TelemetrySummary:
    """The summary of the rows. `cost_percent` is the sampler's own share of one core."""

    measurements: list[Measurement] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    cost_percent: float | None = None


@contextlib.contextmanager
def beside(record: Record) -> Iterator[None]:
    """Sample while the block runs, then put the summary and the flags into the record. A failure ends no trial."""
    path = record.request.out / TELEMETRY_FILE
    board = _board(record)
    sampler = _start(record, path, () if board is None else board.handles)
    if sampler is None:
        yield
        return
    phases = sampler.stdin.fileno() if sampler.stdin is not None else -1
    os.set_blocking(phases, False)  # a sampler that hangs in the driver must not hang the trial
    waits = _Waits(leave_out=sampler.pid)

    def tell(phase: str) -> None:
        waits.look(phase)
        with contextlib.suppress(BrokenPipeError, BlockingIOError):  # it ended: `_stop` logs why
            os.write(phases, f"{phase}\n".encode())

    record.on_phase = tell
    record.on_show = None if board is None else board.tell
    try:
        yield
    finally:
        record.on_phase = record.on_show = None
        if board is not None:
            board.close()
        _stop(record, sampler)
    summary = sum_up(read(path))
    waited = waits.summary()
    measurements = [*summary.measurements, *waited.measurements]
    record.observed += measurements
    record.flags += [flag for flag in (*summary.flags, *waited.flags) if flag not in record.flags]
    record.fingerprint["telemetry_cost_percent"] = summary.cost_percent
    if measurements:
        record.log("telemetry: " + ", ".join(in_words(measurement) for measurement in measurements))


@contextlib.contextmanager
def of_gpus(request: Request, trial: Trial) -> Iterator[None]:
    """On a further machine of a training: its GPUs at /metrics, where that is asked for. Nothing of it is kept."""
    if not os.environ.get(METRICS_VARIABLE):
        yield
        return
    record = Record(request, trial, Clock())
    board = _board(record)
    if board is None:
        yield
        return
    board.tell_place()
    sampler = _start(record, Path(os.devnull), board.handles)
    try:
        yield
    finally:
        board.close()
        if sampler is not None:
            _stop(record, sampler)


class _Waits:
    """Waits for a CPU in the measured window."""

    def __init__(self, *, leave_out: int) -> None:
        self._leave_out = leave_out
        self._ends: list[cpu_contention.CpuPressure] = []

    def look(self, phase: str) -> None:
        """Called with each phase that begins, and "" between phases."""
        is_end = len(self._ends) == 1 and phase != WINDOW
        if is_end or (not self._ends and phase == WINDOW):
            with contextlib.suppress(OSError):  # a process ended while its threads were listed: unknown
                self._ends.append(cpu_contention.read(os.getpid(), leave_out=self._leave_out))

    def summary(self) -> TelemetrySummary:
        if len(self._ends) < 2:
            return TelemetrySummary()
        waits = cpu_contention.between(*self._ends)
        found = [
            Measurement(name=name, value=value, context={"window": WINDOW})
            for name, value in dataclasses.asdict(waits).items()
            if value is not None
        ]
        return TelemetrySummary(measurements=found, flags=waits.flags)


def _board(record: Record) -> prometheus.MetricsBoard | None:
    """Where Prometheus is shown the trial; None where nobody asked for it, or where it cannot be."""
    try:
        asked = prometheus.MetricsEndpoint.from_environment()
        if asked is None:
            return None
        board = prometheus.MetricsBoard(record, asked)
    except (ValueError, OSError) as error:
        why = f"port {asked.port}: {os.strerror(error.errno or 0)}" if isinstance(error, OSError) and asked else error
        record.log(f"metrics: {why}; going on without /metrics")
        return None
    record.log(f"metrics: http://{asked.host or '0.0.0.0'}:{board.port}/metrics")  # noqa: S104 - words
    board.tell()
    return board


def _start(record: Record, path: Path, shown: tuple[int, ...]) -> subprocess.Popen[bytes] | None:
    root = str(Path(__file__).resolve().parents[2])
    program = ("bench.machine.prometheus", *map(str, shown)) if shown else ("bench.machine.sampler",)
    argv = (
        *(sys.executable, "-m", *program, "--root", str(os.getpid())),
        *("--started", repr(record.clock.started), "--gpus", str(record.trial.world_size), "--out", str(path)),
    )
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(
            argv,
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=shown,
            start_new_session=True,  # it outlives a signal to the trial's process group
        )
    except OSError as error:
        record.log(f"telemetry: the sampler cannot be started: {error.strerror}; going on without it")
        return None


def _stop(record: Record, sampler: subprocess.Popen[bytes]) -> None:
    try:
        _, errors = sampler.communicate(timeout=STOP_SEC)
    except subprocess.TimeoutExpired:
        sampler.kill()
        record.log(f"telemetry: the sampler did not end within {STOP_SEC:g} s and was killed")
        return
    if sampler.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        record.log(f"telemetry: stopped early: {lines[-1] if lines else f'exit {sampler.returncode}'}")


def read(path: Path) -> list[Row]:
    """The whole rows of a telemetry.csv; a row cut short by a kill or a full disk is left out."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            lines = [line for line in file if line.endswith("\n")]
    except OSError:
        return []
    fields = [cells for cells in csv.reader(lines) if len(cells) == len(COLUMNS)]
    return [dict(zip(COLUMNS, cells, strict=True)) for cells in fields[1:]]


def sum_up(rows: Sequence[Row]) -> TelemetrySummary:
    """Means over the measured window with their intervals, and flags."""
    window = [row for row in rows if row["phase"] == WINDOW]
    context = {"window": WINDOW if window else "trial"}
    window = window or list(rows)
    measurements = []
    for name in SUMMED_UP:
        values = [float(row[name]) for row in window if row[name]]
        if values:
            value = sum(values) / len(values)
            measurements.append(Measurement(name=name, value=value, interval=interval_of(values), context=context))
    capped = _share(window, {nvml.POWER_CAP})
    if capped is not None:
        measurements.append(Measurement(name="gpu_power_capped_percent", value=100.0 * capped, context=context))
    return TelemetrySummary(
        measurements=measurements, flags=[*_slowdowns(window), *_others(window)], cost_percent=_cost_percent(rows)
    )


def interval_of(values: list[float]) -> Interval | None:
    """The interval of a mean of correlated samples; None for fewer than 25 of them.

    Neighbouring samples are not independent, so the bootstrap is over the means of consecutive blocks (batch means;
    Law and Kelton, Simulation Modeling and Analysis): n counts blocks.
    """
    blocks = min(MOST_BLOCKS, len(values) // BLOCK_SAMPLES)
    if blocks < FEWEST_BLOCKS:
        return None
    edges = [len(values) * number // blocks for number in range(blocks + 1)]
    return summarize([sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)])


def in_words(measurement: Measurement) -> str:
    """A measurement for the log."""
    value, name = measurement.value or 0.0, measurement.name
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes').replace('_', ' ')} {value / 2**30:.2f} GiB"
    words, _, unit = name.rpartition("_")
    return f"{words.replace('_', ' ')} {value:.0f} {'%' if unit == 'percent' else unit}"


def _share(rows: Sequence[Row], names: set[str]) -> float | None:
    known = [row for row in rows if row["gpu_clock_limits"]]
    return sum(not names.isdisjoint(row["gpu_clock_limits"].split()) for row in known) / len(known) if known else None


def _slowdowns(rows: Sequence[Row]) -> list[str]:
    """Heat and weak power are flagged; a power cap alone is normal for many cards at full load."""
    flags = []
    for name in nvml.SLOWDOWNS.values():
        share = _share(rows, {name})
        if share is not None and share >= SLOWDOWN_SHARE:
            flags.append(f"throttled: {name} in {100 * share:.0f} % of samples")
    return flags


def _others(rows: Sequence[Row]) -> list[str]:
    """One line for each process that is not the trial's, with the most memory it held."""
    most: Counter[int] = Counter()
    for row in rows:
        if row["gpu_other_processes"] not in ("", NONE, UNKNOWN):
            for word in row["gpu_other_processes"].split():
                pid, _, held = word.partition(":")
                most[int(pid)] = max(most[int(pid)], int(held))
    return [f"{describe(pid, held)} was on the GPU" for pid, held in most.items()]


def _cost_percent(rows: Sequence[Row]) -> float | None:
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    seconds = float(last["elapsed_sec"]) - float(first["elapsed_sec"])
    spent = float(last["sampler_cpu_sec"]) - float(first["sampler_cpu_sec"])
    return round(100.0 * spent / seconds, 2) if seconds > 0 else None
