"""Files of a report for programs: JSON and CSV. reports/README.md documents every field.

Every CSV file begins with `run_id`, so that files of several runs can be concatenated; the other columns and their
units are those of `reports.read.loaded_run` and `reports.read.measurements`. `trials.csv` has every setting of its
trial. `summary.csv` is a part of summary.json, flattened.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from bench.records.status import TrialStatus
from bench.records.trial import Trial
from bench.records.version import SCHEMA_VERSION, VERSION
from reports import formatting
from reports.read import measurements
from reports.read.loaded_run import Run
from reports.summary import sentences
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary
from reports.training.training_facts import TrainingReport

ESTIMATES = (
    *("step_time_sec", "elapsed_samples_per_sec", "elapsed_useful_tokens_per_sec"),
    *("steady_samples_per_sec", "steady_tokens_per_sec", "steady_useful_tokens_per_sec"),
)
_RATIOS = ("samples_ratio", "useful_tokens_ratio")
_INTERVALS = (*ESTIMATES, *_RATIOS, "usd_per_1000_samples")
_RUN_FIELDS = ("run_id", "created_at", "suite", "profile", "fleet_kind", "workers", "provenance")
_SETTINGS = (
    *("max_seq_len", "micro_batch_size", "gradient_accumulation_steps", "layout"),
    *("base_precision", "lora_rank", "optimizer", "gradient_checkpointing"),
)
_TRIAL_SETTINGS = tuple(field.name for field in fields(Trial) if field.name not in ("name", "reason", "kind"))
_MEASURED = ("n_workers", "n_processes", "n_steps", "padding_percent")
_ROW_FIELDS = ("first_loss", "last_loss", "peak_vram_bytes", "peak_rss_bytes", "load_time_sec")
_OTHER_FIELDS = ("kind", "reason", "planned", "ends", "missing", "n_measurements")


def of_benchmark(summary: Summary, run: Run) -> dict[str, bytes]:
    """Return every file of a benchmark by its name."""
    return {
        "summary.json": summary_json(summary),
        "summary.csv": summary_csv(summary),
        "trials.csv": to_csv(with_run_id(run, with_settings(run))),
        "steps.csv": to_csv(with_run_id(run, run.steps)),
        "measurements.csv": to_csv(with_run_id(run, measurements.frame(run))),
    }


def of_training(training: TrainingReport) -> dict[str, bytes]:
    """Return the steps and held-out losses of a training. Run and configuration come first on each line."""
    record = training.record
    frames = {
        "steps.csv": pd.DataFrame(asdict(record.steps)),
        "evaluations.csv": pd.DataFrame([asdict(evaluation) for evaluation in record.evaluations]),
    }
    for frame in frames.values():
        frame.insert(0, "run_id", training.run.run_id)
        frame.insert(1, "configuration", training.run.planned[0].trial.name)
    return {name: to_csv(frame) for name, frame in frames.items()}


def summary_json(summary: Summary) -> bytes:
    """Format the whole report as JSON. Unknown values are null; the same run gives the same bytes."""
    record, hosts = summary.record, summary.hosts
    document = {
        "kind": "report_summary",
        "schema_version": SCHEMA_VERSION,
        "version": VERSION,
        "run": _fields(record, _RUN_FIELDS),
        "profile_note": summary.profile_note,
        "recommendation": sentences.recommendation(summary),
        "advice": None if summary.choice is None else summary.choice.advice,
        "recommended": summary.recommended_label,
        "warnings": [asdict(warning) | {"text": sentences.warning_text(warning)} for warning in summary.warnings],
        "baseline": summary.baseline,
        "prices": [asdict(price) for price in summary.prices],
        "hosted": None if summary.hosted is None else asdict(summary.hosted),
        "counts": {"planned": len(record.planned)}
        | {end.value: summary.counts.get(end, 0) for end in TrialStatus}
        | {"missing": len(summary.missing), "rejected_files": len(summary.rejected)},
        "configurations": [_configuration(row) for row in summary.rows],
        "other_configurations": [
            {"configuration": other.label} | _fields(other, _OTHER_FIELDS) for other in summary.others
        ],
        "failures": [failure.to_json() for failure in summary.failures],
        "missing": [asdict(item) for item in summary.missing],
        "rejected": [asdict(item) for item in summary.rejected],
        "fingerprint": {
            "devices": list(hosts.devices),
            "common": hosts.common,
            "differences": hosts.differences,
        },
    }
    # One line per list item: readable and diffable, and possible with the fast encoder, which cannot indent.
    lines = ",\n".join(f" {_json(key)}: {_json_lines(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n".encode()


def _json_lines(value: object) -> str:
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return _json(value)
    return "[\n  " + ",\n  ".join(map(_json, value)) + "\n ]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _configuration(row: ConfigurationRow) -> dict[str, Any]:
    measured = row.measured
    return {
        "configuration": row.label,
        "reason": row.trial.reason,
        "is_baseline": row.is_baseline,
        **_fields(row.trial, _SETTINGS),
        "planned": row.planned,
        "ends": row.ends,
        "missing": row.missing,
        **_fields(measured, _MEASURED),
        "worker_median_step_time_sec": getattr(measured, "worker_medians", {}),
        **{name: _interval(measured, name) for name in ESTIMATES},
        **{name: _interval(row, name) for name in _RATIOS},
        "usd_per_1000_samples": _interval(row.cost, "usd_per_1000_samples"),
        "costs": [{name: value for name, value in asdict(cost).items() if name != "price"} for cost in row.costs],
        **_fields(row, _ROW_FIELDS),
    }


def _interval(holder: object, name: str) -> dict[str, Any] | None:
    value = getattr(holder, name, None)
    return None if value is None else asdict(value)


def _fields(record: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields of a dataclass, in this order; all None for None."""
    return {name: getattr(record, name, None) for name in names}


def summary_csv(summary: Summary) -> bytes:
    """Format one line per configuration as CSV; empty without any."""
    lines = [
        {"run_id": summary.record.run_id, "profile": summary.record.profile, "profile_note": summary.profile_note}
        | {
            name: value
            for name, value in document.items()
            if name not in ("ends", "worker_median_step_time_sec", "costs")
        }
        | {name: document[name] or {"value": None, "low": None, "high": None} for name in _INTERVALS}
        | {f"ended_{end.value.lower()}": row.ends.get(end, 0) for end in TrialStatus}
        | {f"price_{name}": getattr(summary.price, name, None) for name in ("usd_per_gpu_hour", "source")}
        for row in summary.rows
        for document in (_configuration(row),)
    ]
    return to_csv(_flat(lines)) if lines else b""


def _flat(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return rows with nested values as a frame: `usd`, `usd_low` and `usd_high` of an interval."""
    frame = pd.json_normalize(list(rows), sep="_")
    return frame.set_axis([str(name).removesuffix("_value") for name in frame.columns], axis=1)


def to_csv(frame: pd.DataFrame) -> bytes:
    """Format a frame as UTF-8 CSV. Missing values are empty, and no text can be read as a formula."""
    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    safe = frame.assign(**{name: frame[name].map(formatting.spreadsheet, na_action="ignore") for name in texts})
    safe.columns = [formatting.spreadsheet(name) for name in frame.columns]
    return formatting.escape_text(safe.to_csv(index=False, lineterminator="\n")).encode()


def with_run_id(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """Add the run's id as the first column, so that files of several runs can be concatenated."""
    table = frame.assign(run_id=run.record.run_id)
    return table[["run_id", *frame.columns]]


def with_settings(run: Run) -> pd.DataFrame:
    """Return the frame of trials with all settings of each."""
    rows = [
        {
            name: " ".join(value) if isinstance(value := getattr(result.trial, name), tuple) else value
            for name in _TRIAL_SETTINGS
        }
        for result in run.results
    ]
    return pd.concat([run.trials, pd.DataFrame(rows, columns=list(_TRIAL_SETTINGS), index=run.trials.index)], axis=1)
