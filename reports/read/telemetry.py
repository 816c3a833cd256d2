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

from pathlib import Path

import pandas as pd

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
_MOST_BYTES = 64_000_000  # ten hours of one GPU at five samples a second


def read(path: Path) -> pd.DataFrame | None:
    """The samples, in order of time; None where the file is not there, is too large, or holds no usable row.

    A row that was cut short, or whose time is no number, is left out: a killed trial's last row often is.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        table = pd.read_csv(path, dtype="str", on_bad_lines="skip", encoding_errors="replace", keep_default_na=False)
    except (OSError, ValueError):  # pandas' parser errors are ValueErrors
        return None
    if not {"elapsed_sec", "phase"} <= set(table.columns):
        return None
    numbers = {
        name: pd.to_numeric(table[name], errors="coerce") if name in table else pd.Series(float("nan"), table.index)
        for name in NUMBERS
    }
    frame = pd.DataFrame(numbers).assign(phase=table["phase"].astype("object"))
    frame = frame[frame["elapsed_sec"].notna() & (frame["elapsed_sec"].abs() < 1e9)]
    return None if frame.empty else frame.sort_values("elapsed_sec", kind="stable").reset_index(drop=True)
