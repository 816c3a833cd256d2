"""telemetry.csv of a trial as a data frame: samples of the machine taken while the trial ran.

| column | meaning |
|---|---|
| elapsed_sec | seconds since the trial's process began |
| phase | phase of the trial: import, load, data, warmup, measure, ceilings |
| gpu | number of the GPU; missing without a GPU |
| gpu_utilization_percent, gpu_power_watts, gpu_sm_clock_mhz | utilization, power and SM clock of that GPU |
| gpu_memory_used_bytes, gpu_temperature_celsius | memory and temperature of that GPU |
| process_cpu_percent | percent of one core, summed over the trial's process tree |
| process_rss_bytes | resident bytes of that tree |
"""

import csv
import io
import itertools
import math
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from bench.records.atomic_files import read_regular, regular_file_size
from bench.records.units import format_mb

NUMBERS = (
    "elapsed_sec",
    "gpu",
    "gpu_utilization_percent",
    "gpu_power_watts",
    "gpu_sm_clock_mhz",
    "gpu_memory_used_bytes",
    "gpu_temperature_celsius",
    "process_cpu_percent",
    "process_rss_bytes",
)
_MAX_TELEMETRY_BYTES = 32_000_000  # ten hours of one GPU at five samples a second take 20 MB
_MAX_ROWS = 400_000  # twice as many as the sampler can write into _MAX_TELEMETRY_BYTES
_MAX_LINE_BYTES = 4_000
_MAX_ELAPSED_SEC, _MAX_VALUE = 1e9, 1e18


def unusable_reason(path: Path) -> str | None:
    """Return why the file at `path` cannot be used; None if it can, or does not exist."""
    try:
        if regular_file_size(path, follow=False) > _MAX_TELEMETRY_BYTES:
            return f"it is larger than {format_mb(_MAX_TELEMETRY_BYTES, 0)}"
        with path.open("rb") as file:
            columns = file.readline(_MAX_LINE_BYTES).strip().split(b",")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if {b"elapsed_sec", b"phase"} <= set(columns) else "its header lacks elapsed_sec or phase"


def read(path: Path) -> pd.DataFrame | None:
    """Read the samples, in order of time; None if the file is missing, too large, or has no usable row.

    Skips truncated rows and rows with an invalid time: the last row of a killed trial is often truncated.
    """
    try:
        return _frame(csv.reader(_lines(read_regular(path, max_bytes=_MAX_TELEMETRY_BYTES, follow=False))))
    except (OSError, csv.Error):
        return None


def _frame(lines: Iterator[list[str]]) -> pd.DataFrame | None:
    header = next(lines, [])
    if not {"elapsed_sec", "phase"} <= set(header):
        return None
    indices = {name: header.index(name) for name in NUMBERS if name in header}
    columns = {name: array("d") for name in NUMBERS}
    phases = []
    for cells in itertools.islice(lines, _MAX_ROWS):
        if len(cells) != len(header) or not abs(_number(cells[indices["elapsed_sec"]])) < _MAX_ELAPSED_SEC:
            continue
        phases.append(cells[header.index("phase")])
        for name, values in columns.items():
            values.append(_number(cells[indices[name]]) if name in indices else math.nan)
    frame = pd.DataFrame({name: np.array(values) for name, values in columns.items()})
    frame["phase"] = pd.Series(phases, dtype="object")
    return None if frame.empty else frame.sort_values("elapsed_sec", kind="stable").reset_index(drop=True)


def _lines(content: bytes) -> Iterator[str]:
    """Decode the lines; skip those longer than a sampler writes."""
    return (line.decode(errors="replace") for line in io.BytesIO(content) if len(line) <= _MAX_LINE_BYTES)


def _number(cell: str) -> float:
    """Parse a number; NaN if it is missing, not finite or too large to draw."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if abs(value) < _MAX_VALUE else math.nan
