"""Any number of runs as frames, and a run's frames as CSV beside the JSON.

`together` puts the frames of several runs under each other, with `run_id` as the first column; the other columns and
their units are those of `reports.read.run` and `reports.read.measurements`. Nothing is averaged over runs. The frame
`files` lists what each run could not use or does not have: run_id, what ("rejected" or "missing"), name (a file, or a
trial's id) and reason.

The CSV files of one report begin with `run_id` too, so that those of two runs can be put together. `trials.csv` has
every setting of its trial. `costs.csv` has one line a fact: configuration, price with its source, gpus, the name of the
fact, which ends in its unit (money is US dollars, times are seconds), its value, and its interval.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from bench.records.trial import Trial
from reports import text
from reports.read.load import load
from reports.read.run import ReportError, Run
from reports.summary.summary import Summary

_COST_COLUMNS = (
    *("configuration", "price_name", "price_usd_per_gpu_hour", "price_source", "price_dated", "gpus"),
    *("fact", "value", "low", "high", "source"),
)
_SETTINGS = tuple(field.name for field in fields(Trial) if field.name not in ("name", "reason", "kind"))


@dataclass(frozen=True, kw_only=True)
class Together:
    """The frames of several runs; see the module's docstring."""

    trials: pd.DataFrame
    steps: pd.DataFrame
    measurements: pd.DataFrame
    files: pd.DataFrame


def load_all(folders: Sequence[Path]) -> tuple[Run, ...]:
    """Read every run's folder. Raises ReportError for one that cannot be trusted, and for a run that comes twice."""
    runs = tuple(load(folder) for folder in folders)
    seen: dict[str, Path] = {}
    for run in runs:
        if (before := seen.get(run.record.run_id)) is not None:
            raise ReportError(f"{run.folder}: holds run {run.record.run_id!r}, as {before} does; name each run once")
        seen[run.record.run_id] = run.folder
    return runs


def together(runs: Sequence[Run]) -> Together:
    """The runs' frames under each other. Raises ReportError without a run."""
    if not runs:
        raise ReportError("no run to read; name at least one run's folder")
    files = [
        {"run_id": run.record.run_id, "what": what, "name": name, "reason": reason}
        for run in runs
        for what, name, reason in (
            *(("rejected", one.file, one.reason) for one in run.rejected),
            *(("missing", one.trial_id, one.reason) for one in run.missing),
        )
    ]
    return Together(
        trials=_under([(run, run.trials) for run in runs]),
        steps=_under([(run, run.steps) for run in runs]),
        measurements=_under([(run, run.measurements) for run in runs]),
        files=pd.DataFrame(files, columns=["run_id", "what", "name", "reason"], dtype="str"),
    )


def to_csv(frame: pd.DataFrame) -> bytes:
    """A frame as UTF-8 CSV. Missing is empty, and no text can be taken for a formula."""
    heads = _line([text.spreadsheet(name) for name in frame.columns])
    # Column by column: pandas' own writer, which goes cell by cell, takes three times as long.
    lines = map(",".join, zip(*(_cells(frame[name]) for name in frame.columns), strict=True))
    return "".join(f"{line}\n" for line in (heads, *lines)).encode()


def _cells(column: "pd.Series[Any]") -> list[str]:
    """A column as a CSV has it; each value that repeats is written once."""
    values = column.tolist()
    if pd.api.types.is_float_dtype(column):
        return ["" if value != value else repr(value) for value in values]
    if column.hasnans:
        values = [None if is_missing else value for value, is_missing in zip(values, column.isna(), strict=True)]
    if pd.api.types.is_object_dtype(column):  # of contexts: True beside 1, which are equal, and words beside numbers
        return [_line([text.spreadsheet(value)]) for value in values]
    written = {value: _line([text.spreadsheet(value)]) for value in set(values)}
    return [written[value] for value in values]


def _line(cells: Sequence[object]) -> str:
    """Cells of one line, quoted where they must be. Alone, an empty cell would be quoted."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="").writerow([*cells, None])
    return lines.getvalue().removesuffix(",")


def of_run(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of `run` as its CSV has it: with the run's id first, so that two runs' files can be put together."""
    return _under([(run, frame)])


def with_settings(run: Run) -> pd.DataFrame:
    """The frame of trials with every setting of each."""
    settings = {
        one.trial_id: {
            name: " ".join(value) if isinstance(value := getattr(one.trial, name), tuple) else value
            for name in _SETTINGS
        }
        for one in run.results
    }
    found = [settings[trial_id] for trial_id in run.trials["trial_id"]]
    return pd.concat([run.trials, pd.DataFrame(found, columns=list(_SETTINGS), index=run.trials.index)], axis=1)


def costs(summary: Summary) -> pd.DataFrame:
    """What every configuration costs at every price, one row a fact; empty where there is no price."""
    lines: list[tuple[object, ...]] = []
    for row in summary.rows:
        for cost in row.costs:
            price, dated = cost.price, cost.price.dated
            on = (row.label, price.name, price.usd_per_gpu_hour, price.source, dated and dated.isoformat())
            lines += [
                (*on, 1, "usd_per_1000_samples", *_ends(cost.usd_per_1000_samples), None),
                (*on, 1, "usd_per_million_useful_tokens", *_ends(cost.usd_per_million_useful_tokens), None),
            ]
            for plan in cost.fine_tunings:
                sure = "measured" if plan.scaling.is_measured else "assumed"
                lines += [
                    (*on, plan.gpus, f"speedup_{sure}", plan.scaling.speedup, None, None, plan.scaling.source),
                    (*on, plan.gpus, "training_sec_10000_samples", *_ends(plan.training_sec), None),
                    (*on, plan.gpus, "usd_10000_samples", *_ends(plan.usd), None),
                    (*on, plan.gpus, "usd_billed_10000_samples", *_ends(plan.usd_billed), None),
                    (*on, plan.gpus, "startup_sec", plan.startup_sec, None, None, None),
                    (*on, plan.gpus, "boot_volume_usd", plan.boot_volume_usd, None, None, None),
                ]
    table = pd.DataFrame(lines, columns=list(_COST_COLUMNS))
    table = table.astype(dict.fromkeys(("value", "low", "high"), "float64"))
    table = table[table["value"].notna()].reset_index(drop=True)
    table.insert(0, "run_id", summary.record.run_id)
    return table


def _ends(of: text.HasInterval) -> tuple[float, float | None, float | None]:
    return of.value, of.low, of.high


def _under(frames: Sequence[tuple[Run, pd.DataFrame]]) -> pd.DataFrame:
    """Frames under each other, the run's id first; an empty one adds no row, but its columns stay."""
    named = [frame.assign(run_id=run.record.run_id) for run, frame in frames]
    filled = [frame for frame in named if len(frame)] or named[:1]
    every = pd.concat(filled, ignore_index=True)
    return every[["run_id", *(name for name in every.columns if name != "run_id")]]
