"""Any number of runs as frames, and a run's frames as CSV beside the JSON.

`together` puts the frames of several runs under each other, with `run_id` as the first column; the other columns and
their units are those of `reports.read.run` and `reports.read.measurements`. Nothing is averaged over runs. The frame
`files` lists what each run could not use or does not have: run_id, what ("rejected" or "missing"), name (a file, or a
trial's id) and reason.

`costs.csv` has one line per configuration, price and number of GPUs; all its money is US dollars, all its times are
seconds, and every line carries its price and that price's source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from reports import text
from reports.read.load import load
from reports.read.run import ReportError, Run
from reports.summary.summary import Summary

_COST_COLUMNS = (
    *("configuration", "price_name", "price_usd_per_gpu_hour", "price_source"),
    "price_dated",
    *("usd_per_1000_samples", "usd_per_million_useful_tokens"),
    *("gpus", "speedup", "speedup_is_measured", "speedup_source"),
    *("training_sec_10000_samples", "training_sec_low", "training_sec_high"),
    *("usd_10000_samples", "usd_low", "usd_high"),
    *("startup_sec", "boot_volume_usd", "usd_billed"),
)


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
    safe = frame.rename(columns=text.spreadsheet)
    for name in safe.columns:
        if pd.api.types.is_object_dtype(safe[name]):  # of contexts: True beside 1, words beside numbers
            safe[name] = safe[name].map(text.spreadsheet)
        elif not pd.api.types.is_numeric_dtype(safe[name]):
            # Names repeat on thousands of rows: each is looked at once.
            safe[name] = safe[name].map({value: text.spreadsheet(value) for value in safe[name].unique()})
    return safe.to_csv(index=False, lineterminator="\n").encode()


def costs(summary: Summary) -> pd.DataFrame:
    """What every configuration costs at every price on every number of GPUs; empty where there is no price."""
    lines = [
        (
            *(row.label, cost.price.name, cost.price.usd_per_gpu_hour, cost.price.source),
            None if cost.price.dated is None else cost.price.dated.isoformat(),
            *(cost.usd_per_1000_samples.value, cost.usd_per_million_useful_tokens.value),
            *(plan.gpus, plan.scaling.speedup, plan.scaling.is_measured, plan.scaling.source),
            *(plan.training_sec.value, plan.training_sec.low, plan.training_sec.high),
            *(plan.usd.value, plan.usd.low, plan.usd.high),
            *(plan.startup_sec, plan.boot_volume_usd, plan.usd_billed.value),
        )
        for row in summary.rows
        for cost in row.costs
        for plan in cost.fine_tunings
    ]
    return pd.DataFrame(lines, columns=list(_COST_COLUMNS))


def _under(frames: Sequence[tuple[Run, pd.DataFrame]]) -> pd.DataFrame:
    """Frames under each other, the run's id first; an empty one adds no row, but its columns stay."""
    named = [frame.assign(run_id=run.record.run_id) for run, frame in frames]
    filled = [frame for frame in named if len(frame)] or named[:1]
    every = pd.concat(filled, ignore_index=True)
    return every[["run_id", *(name for name in every.columns if name != "run_id")]]
