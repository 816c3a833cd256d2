"""telemetry.csv beside a trial's result, as a frame: what the machine did while the trial ran, sample by sample.

| column | meaning |
|---|---|
| elapsed_sec | seconds since the trial's process began |
| phase | import, load, data, warmup, measure, ceilings: what the trial was doing |
| gpu | number of the GPU; missing where there is none |
| gpu_utilization_percent, gpu_power_watts, gpu_sm_clock_mhz | of that GPU |
| gpu_memory_used_bytes, gpu_temperature_celsius | of that GPU |
| process_cpu_percent | of one core, over the trial's process tree |
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

from bench.records.atomic_files import read_regular, regular_size

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
_MOST_BYTES = 32_000_000  # ten hours of one GPU at five samples a second take 20 MB
_MOST_ROWS = 400_000  # of what a sampler writes, twice as many as fit
_MOST_LINE_BYTES = 4_000
_MOST_SEC, _MOST = 1e9, 1e18


def objection(path: Path) -> str | None:
    """Why the file at `path` is not read, or None; None where there is none, too."""
    try:
        if regular_size(path, follow=False) > _MOST_BYTES:
            return f"it is larger than {_MOST_BYTES / 1e6:.0f} MB"
        with path.open("rb") as file:
            heads = file.readline(_MOST_LINE_BYTES).strip().split(b",")
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if {b"elapsed_sec", b"phase"} <= set(heads) else "its first line does not name elapsed_sec and phase"


def read(path: Path) -> pd.DataFrame | None:
    """The samples, in order of time; None where the file is not there, is too large, or holds no usable row.

    A row that was cut short, or whose time is no number, is left out: a killed trial's last row often is.
    """
    try:
        return _frame(csv.reader(_lines(read_regular(path, most_bytes=_MOST_BYTES, follow=False))))
    except (OSError, csv.Error):
        return None


def _frame(lines: Iterator[list[str]]) -> pd.DataFrame | None:
    heads = next(lines, [])
    if not {"elapsed_sec", "phase"} <= set(heads):
        return None
    places = {name: heads.index(name) for name in NUMBERS if name in heads}
    found = {name: array("d") for name in NUMBERS}
    phases = []
    for cells in itertools.islice(lines, _MOST_ROWS):
        if len(cells) != len(heads) or not abs(_number(cells[places["elapsed_sec"]])) < _MOST_SEC:
            continue
        phases.append(cells[heads.index("phase")])
        for name, values in found.items():
            values.append(_number(cells[places[name]]) if name in places else math.nan)
    frame = pd.DataFrame({name: np.array(values) for name, values in found.items()})
    frame["phase"] = pd.Series(phases, dtype="object")
    return None if frame.empty else frame.sort_values("elapsed_sec", kind="stable").reset_index(drop=True)


def _lines(content: bytes) -> Iterator[str]:
    """The lines that a sampler can have written; the others are left out."""
    return (line.decode(errors="replace") for line in io.BytesIO(content) if len(line) <= _MOST_LINE_BYTES)


def _number(cell: str) -> float:
    """NaN where it is none, or none that can be drawn."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if abs(value) < _MOST else math.nan
