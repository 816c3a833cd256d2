"""Frames of a run as CSV, and loading of several runs.

Every CSV file begins with `run_id`, so that files of several runs can be concatenated; the other columns and their
units are those of `reports.read.run` and `reports.read.measurements`. `trials.csv` has every setting of its trial.
`costs.csv` has one line per fact: configuration, price with its source, gpus, the name of the fact, which contains its
unit (usd: US dollars, sec: seconds), its value, and its interval.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from bench.records.trial import Trial
from reports import formatting
from reports.read.load import load
from reports.read.run import ReportError, Run
from reports.summary.summary import Summary

_COST_COLUMNS = (
    *("configuration", "price_name", "price_usd_per_gpu_hour", "price_source", "price_dated", "gpus"),
    *("fact", "value", "low", "high", "source"),
)
_SETTINGS = tuple(field.name for field in fields(Trial) if field.name not in ("name", "reason", "kind"))


def load_all(folders: Sequence[Path]) -> tuple[Run, ...]:
    """Load every run's folder. Raises ReportError if one is invalid, or contains the same run as another."""
    runs = tuple(load(folder) for folder in folders)
    seen: dict[str, Path] = {}
    for run in runs:
        if (before := seen.get(run.record.run_id)) is not None:
            raise ReportError(
                f"{run.folder}: contains run {run.record.run_id!r}, like {before}", remedy="pass each run once"
            )
        seen[run.record.run_id] = run.folder
    return runs


def to_csv(frame: pd.DataFrame) -> bytes:
    """Format a frame as UTF-8 CSV. Missing values are empty, and no text can be read as a formula."""
    header = _format_row([formatting.spreadsheet(name) for name in frame.columns])
    # Column by column: pandas' writer works cell by cell and takes three times as long.
    lines = map(",".join, zip(*(_format_column(frame[name]) for name in frame.columns), strict=True))
    return "".join(f"{line}\n" for line in (header, *lines)).encode()


def _format_column(column: "pd.Series[Any]") -> list[str]:
    """Format a column's values; repeated ones are formatted once."""
    values = column.tolist()
    if pd.api.types.is_float_dtype(column):
        texts = list(map(repr, values))
        return ["" if text == "nan" else text for text in texts] if column.hasnans else texts
    if column.hasnans:
        values = [None if is_missing else value for value, is_missing in zip(values, column.isna(), strict=True)]
    if pd.api.types.is_object_dtype(column):  # may mix types: True and 1 are equal as keys
        return [_format_row([formatting.spreadsheet(value)]) for value in values]
    written = {value: _format_row([formatting.spreadsheet(value)]) for value in set(values)}
    return [written[value] for value in values]


def _format_row(cells: Sequence[object]) -> str:
    """Format the cells of one line, quoted if necessary. The extra cell avoids quotes around a single empty one."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([*cells, None])
    return buffer.getvalue().removesuffix(",")


def with_run_id(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """Add the run's id as the first column, so that files of several runs can be concatenated."""
    table = frame.assign(run_id=run.record.run_id)
    return table[["run_id", *frame.columns]]


def with_settings(run: Run) -> pd.DataFrame:
    """Return the frame of trials with all settings of each."""
    settings = {
        result.trial_id: {
            name: " ".join(value) if isinstance(value := getattr(result.trial, name), tuple) else value
            for name in _SETTINGS
        }
        for result in run.results
    }
    rows = [settings[trial_id] for trial_id in run.trials["trial_id"]]
    return pd.concat([run.trials, pd.DataFrame(rows, columns=list(_SETTINGS), index=run.trials.index)], axis=1)


def costs(summary: Summary) -> pd.DataFrame:
    """Return the cost of every configuration at every price, one row per fact; empty without a price."""
    rows: list[tuple[object, ...]] = []
    for row in summary.rows:
        for cost in row.costs:
            price, dated = cost.price, cost.price.dated
            price_columns = (row.label, price.name, price.usd_per_gpu_hour, price.source, dated and dated.isoformat())
            rows += [
                (*price_columns, 1, "usd_per_1000_samples", *_value_and_interval(cost.usd_per_1000_samples), None),
                (
                    *price_columns,
                    1,
                    "usd_per_million_useful_tokens",
                    *_value_and_interval(cost.usd_per_million_useful_tokens),
                    None,
                ),
            ]
            for plan in cost.fine_tunings:
                basis = "measured" if plan.scaling.is_measured else "assumed"
                rows += [
                    (
                        *price_columns,
                        plan.gpus,
                        f"speedup_{basis}",
                        plan.scaling.speedup,
                        None,
                        None,
                        plan.scaling.source,
                    ),
                    (
                        *price_columns,
                        plan.gpus,
                        "training_sec_10000_samples",
                        *_value_and_interval(plan.training_sec),
                        None,
                    ),
                    (*price_columns, plan.gpus, "usd_10000_samples", *_value_and_interval(plan.usd), None),
                    (
                        *price_columns,
                        plan.gpus,
                        "usd_billed_10000_samples",
                        *_value_and_interval(plan.usd_billed),
                        None,
                    ),
                    (*price_columns, plan.gpus, "startup_sec", plan.startup_sec, None, None, None),
                    (*price_columns, plan.gpus, "boot_volume_usd", plan.boot_volume_usd, None, None, None),
                ]
    table = pd.DataFrame(rows, columns=list(_COST_COLUMNS))
    table = table.astype(dict.fromkeys(("value", "low", "high"), "float64"))
    table = table[table["value"].notna()].reset_index(drop=True)
    table.insert(0, "run_id", summary.record.run_id)
    return table


def _value_and_interval(interval: formatting.HasInterval) -> tuple[float, float | None, float | None]:
    return interval.value, interval.low, interval.high
