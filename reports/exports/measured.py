"""A run's speeds as one sealed file without names, for the folder `measured/`, and the reader of that folder.

    inv report --format=measured                # report/measured/GPU-DAY.json of the last run
    python -m reports.exports.measured [FILE...]    # a table of these files, by default of measured/

A file has settings, speeds, memory and power of each succeeded trial of a suite, and versions of software and GPU, all
from allow-lists: no run id, host, path, user or name of a model or data file. Its checksum shows damage, not who wrote
it.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records.bootstrap import Interval, summarize
from bench.records.checksummed import Checksummed, ResultError
from bench.records.status import TrialStatus
from bench.records.units import format_gib
from reports import formatting
from reports.exports.log_model import LoggedRun
from reports.read.run import ReportError

MEASURED = "measured"  # the format, its folder below a report, and the repository's folder
_SETTINGS = (
    *("recipe", "matmul", "layout", "max_seq_len", "micro_batch_size", "gradient_accumulation_steps", "lora_rank"),
    *("lora_dropout", "lora_targets", "optimizer", "base_precision", "gradient_checkpointing", "checkpoint_every"),
    *("offload_checkpoints", "held_layers", "world_size"),
)
_FACTS = (
    *("gpu_name", "gpu_compute_capability", "gpu_memory_bytes", "gpu_power_limit_watts", "gpu_driver", "cuda"),
    *("model_parameters", "compute_dtype", "torch", "transformers", "peft", "bitsandbytes", "git_sha", "recipe_notes"),
    "step_captured",
)
_RATES = ("samples_per_sec", "useful_tokens_per_sec", "peak_vram_bytes")
_TELEMETRY = ("gpu_power_watts", "gpu_sm_clock_mhz", "gpu_power_capped_percent")


@dataclass(frozen=True, kw_only=True)
class MeasuredTrial:
    """One trial: its settings, its measured steps and what ran it."""

    settings: dict[str, Any]
    facts: dict[str, Any]
    step_time_sec: Interval
    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun(Checksummed):
    """The trials of one run. `day` is the day of its first trial, in UTC."""

    FILE, KIND = "measured.json", "measured_run"

    day: str
    trials: list[MeasuredTrial]


def write_measured(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Write a run's file below a report's folder; return it. Raises OSError; ReportError if nothing was measured."""
    trials = list(_measured_trials(runs))
    if not trials:
        raise ReportError(
            "no trial on a GPU succeeded: nothing to contribute", remedy="run `inv bench --suite recipes`"
        )
    folder = report / MEASURED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    day = f"{datetime.fromtimestamp(min(run.start_time for run in runs), UTC):%Y-%m-%d}"
    written = MeasuredRun(day=day, trials=trials).write(folder)
    gpu = re.sub(r"[^a-z0-9]+", "-", str(trials[0].facts["gpu_name"]).lower()).strip("-")
    return written.rename(folder / f"{gpu}-{day}.json")


def _measured_trials(runs: Sequence[LoggedRun]) -> Iterator[MeasuredTrial]:
    for run in runs:
        times = [point.values["step_time_sec"] for point in run.points if point.phase == "train"]
        if run.status != TrialStatus.SUCCEEDED.value or not times or not run.fingerprint.get("gpu_name"):
            continue
        yield MeasuredTrial(
            settings={name: run.settings[name] for name in _SETTINGS if name in run.settings},
            facts={name: run.fingerprint[name] for name in _FACTS if run.fingerprint.get(name) is not None},
            step_time_sec=summarize(times),
            rates={
                **{name: run.results[name] for name in _RATES if name in run.results},
                **{name: value for name in _TELEMETRY if (value := _telemetry(run, name)) is not None},
            },
        )


def _telemetry(run: LoggedRun, name: str) -> float | None:
    """Return a reading of the measured steps."""
    return run.results.get(f"measured/{name}.window_measure")


def read_measured(paths: Sequence[Path]) -> list[MeasuredRun]:
    """Read and verify files. Raises ReportError that names the first bad one."""
    try:
        return [MeasuredRun.read(path) for path in paths]
    except ResultError as error:
        raise ReportError.from_error(error, remedy="write it again with `inv report --format=measured`") from error


def make_table(runs: Sequence[MeasuredRun]) -> Table:
    """Make a table of all trials, the fastest of each GPU first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("GPU, day", no_wrap=True)
    table.add_column("configuration")
    for name in ("step s", "useful tok/s", "peak GiB", "watts"):
        table.add_column(name, justify="right")
    rows = [(run.day, trial) for run in runs for trial in run.trials]
    for day, trial in sorted(rows, key=lambda row: (_gpu(row[1]), -_speed(row[1]))):
        rates, median = trial.rates, trial.step_time_sec.median
        table.add_row(
            Text(formatting.escape_text(f"{_gpu(trial)}, {day}")),
            Text(formatting.escape_text(_configuration(trial.settings))),
            f"{median:.3f} (n={trial.step_time_sec.n})",
            formatting.number(_speed(trial)),
            format_gib(rates["peak_vram_bytes"]) if "peak_vram_bytes" in rates else "-",
            formatting.number(rates.get("gpu_power_watts")),
        )
    return table


def _gpu(trial: MeasuredTrial) -> str:
    return str(trial.facts.get("gpu_name", formatting.UNKNOWN))


def _speed(trial: MeasuredTrial) -> float:
    return trial.rates.get("useful_tokens_per_sec", 0.0)


def _configuration(settings: dict[str, Any]) -> str:
    size = f"{settings.get('max_seq_len')} x {settings.get('micro_batch_size')}"
    parts = [settings.get("recipe"), settings.get("layout"), size, settings.get("matmul")]
    held = settings.get("held_layers")
    return " ".join([*(str(part) for part in parts if part is not None), *([f"held {held}"] if held else [])])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reports.exports.measured")
    parser.add_argument("files", nargs="*", type=Path, help="default: measured/*.json")
    paths = parser.parse_args(argv).files or sorted(Path(MEASURED).glob("*.json"))
    try:
        runs = read_measured(paths)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    Console().print(make_table(runs) if runs else "measured/ has no file yet")
    return 0


if __name__ == "__main__":
    sys.exit(main())
