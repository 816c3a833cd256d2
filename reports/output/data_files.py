"""Files of a report for programs: JSON and CSV. reports/README.md documents every field.

Every CSV file begins with `run_id`, so that files of several runs can be concatenated; the other columns and their
units are those of `reports.read.loaded_run` and `reports.read.measurements`. `trials.csv` has every setting of its
trial, `costs.csv` a line for each fact about a price.
"""

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from bench.records.status import TrialStatus
from bench.records.trial import Trial
from bench.records.version import SCHEMA_VERSION, VERSION
from reports import formatting
from reports.read import measurements
from reports.read.loaded_run import Run
from reports.statistics.types import Ratio
from reports.summary import cost, sentences
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary
from reports.training.training_facts import TrainingReport

ESTIMATES = (
    *("step_time_sec", "elapsed_samples_per_sec", "elapsed_useful_tokens_per_sec"),
    *("steady_samples_per_sec", "steady_tokens_per_sec", "steady_useful_tokens_per_sec"),
)
_RUN_FIELDS = ("run_id", "created_at", "suite", "profile", "spread", "fleet_kind", "workers", "provenance")
_SETTINGS = (
    *("max_seq_len", "micro_batch_size", "gradient_accumulation_steps", "layout"),
    *("base_precision", "lora_rank", "optimizer", "gradient_checkpointing"),
)
_COST_COLUMNS = (
    *("configuration", "price_name", "price_usd_per_gpu_hour", "price_source", "price_dated", "gpus"),
    *("fact", "value", "low", "high", "source"),
)
_TRIAL_SETTINGS = tuple(field.name for field in fields(Trial) if field.name not in ("name", "reason", "kind"))
_COUNTS, _SHARES = ("n_workers", "n_processes", "n_steps"), ("padding_percent", "worker_spread")
_RATIO_FIELDS = ("value", "low", "high", "verdict", "over")
_NOT_IN_JSON = ("log_tail", "reason_code", "phase")  # excluded from a failure
_OTHER_FIELDS = ("kind", "reason", "planned", "ends", "missing", "n_measurements")
_AMOUNTS = ("joules_per_1000_useful_tokens", "fine_tuning_kwh")


def of_benchmark(summary: Summary, run: Run) -> dict[str, bytes]:
    """Return every file of a benchmark by its name."""
    return {
        "summary.json": summary_json(summary, run),
        "summary.csv": summary_csv(summary),
        "trials.csv": to_csv(with_run_id(run, with_settings(run))),
        "steps.csv": to_csv(with_run_id(run, run.steps)),
        "costs.csv": to_csv(costs(summary)),
        "measurements.csv": to_csv(with_run_id(run, run.measurements)),
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


def summary_json(summary: Summary, run: Run) -> bytes:
    """Format the whole report as JSON. Unknown values are null; the same run gives the same bytes."""
    record = summary.record
    document = {
        "kind": "report_summary",
        "schema_version": SCHEMA_VERSION,
        "version": VERSION,
        "run": _fields(record, *_RUN_FIELDS),
        "profile_note": summary.profile_note,
        "recommendation": sentences.spell_out(sentences.recommendation(summary)),
        "advice": None if summary.choice is None else summary.choice.advice,
        "recommended": summary.recommended_label,
        "finding": sentences.spell_out(sentences.finding(summary)),
        "second_finding": sentences.second_finding(summary),
        "cautions": list(sentences.cautions(summary)),
        "warnings": [asdict(warning) for warning in summary.warnings],
        "baseline": summary.baseline,
        "price": None if summary.price is None else _price(summary.price),
        "prices": [_price(price) for price in summary.prices],
        "hosted": None if summary.hosted is None else asdict(summary.hosted),
        "billed": _billed(summary.billed),
        "counts": {"planned": len(record.planned)}
        | {end.value: summary.counts.get(end, 0) for end in TrialStatus}
        | {"missing": len(summary.missing), "rejected_files": len(summary.rejected)},
        "configurations": [_configuration(row) for row in summary.rows],
        "other_configurations": [
            {"configuration": other.label} | _fields(other, *_OTHER_FIELDS) for other in summary.others
        ],
        "failures": [
            {name: value for name, value in asdict(failure).items() if name not in _NOT_IN_JSON}
            | {"end": failure.end.value}
            for failure in summary.failures
        ],
        "missing": [asdict(item) for item in summary.missing],
        "rejected": [asdict(item) for item in summary.rejected],
        "fingerprint": {
            "devices": list(summary.hosts.devices),
            "common": summary.hosts.common,
            "differences": {difference.key: difference.where_by_value for difference in summary.hosts.differences},
        },
        "measurements": _measurements(run),
        "trials": _rows(run.trials),
    }
    # One line per list item: readable and diffable, and possible with the fast encoder, which cannot indent.
    lines = ",\n".join(f" {_json(key)}: {_json_lines(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n".encode()


def _rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return a frame's rows, converted column by column: pandas' method takes four times as long."""
    columns = [list(map(_plain, frame[name].tolist())) for name in frame.columns]
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _json_lines(value: object) -> str:
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return _json(value)
    return "[\n  " + ",\n  ".join(map(_json, value)) + "\n ]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def summary_csv(summary: Summary) -> bytes:
    """Format one line per configuration as CSV; empty without any."""
    lines = [_csv_line(row, summary) for row in summary.rows]
    return to_csv(pd.DataFrame(lines, dtype=object)) if lines else b""


def _configuration(row: ConfigurationRow) -> dict[str, Any]:
    measured = row.measured
    return {
        "configuration": row.label,
        "reason": row.trial.reason,
        "is_baseline": row.is_baseline,
        **_fields(row.trial, *_SETTINGS),
        "planned": row.planned,
        "ends": row.ends,
        "missing": row.missing,
        **{name: 0 if measured is None else getattr(measured, name) for name in _COUNTS},
        **{name: None if measured is None else asdict(getattr(measured, name)) for name in ESTIMATES},
        **{name: None if measured is None else getattr(measured, name) for name in _SHARES},
        "worker_median_step_time_sec": {} if measured is None else measured.worker_medians,
        "outlier_steps": None if measured is None else measured.outliers,
        **{name: _ratio(getattr(row, name)) for name in ("samples_ratio", "useful_tokens_ratio")},
        **{name: _amount(row, name) for name in _AMOUNTS},
        "usd_per_1000_samples": None if row.cost is None else asdict(row.cost.usd_per_1000_samples),
        "costs": [_cost(cost) for cost in row.costs],
        **{name: getattr(row, name) for name in ("first_loss", "last_loss", "peak_vram_bytes", "peak_rss_bytes")},
        "load_time_sec": row.load_time_sec,
    }


def _ratio(ratio: Ratio | None) -> dict[str, Any] | None:
    return None if ratio is None else _fields(ratio, *_RATIO_FIELDS) | {"steady": asdict(ratio.steady)}


def _amount(row: ConfigurationRow, name: str) -> dict[str, Any] | None:
    amount = None if row.energy is None else getattr(row.energy, name)
    return None if amount is None else asdict(amount)


def _measurements(run: Run) -> dict[str, list[dict[str, Any]]]:
    sections: dict[str, list[dict[str, Any]]] = {}
    for row in run.measurements[list(measurements.COLUMNS)].to_dict(orient="records"):
        section = sections.setdefault(str(row.pop("section")), [])
        section.append(
            {str(name): _plain(value) for name, value in row.items()} | {"context": json.loads(row["context"])}
        )
    return sections


def _csv_line(row: ConfigurationRow, summary: Summary) -> dict[str, object]:
    document = _configuration(row)
    line: dict[str, object] = {"run_id": summary.record.run_id, "profile": summary.record.profile}
    for name, value in document.items():
        if name in ("ends", "worker_median_step_time_sec", "costs"):  # costs are in costs.csv
            continue
        if name in (*ESTIMATES, *_AMOUNTS, "samples_ratio", "useful_tokens_ratio", "usd_per_1000_samples"):
            value = value or {"value": None, "low": None, "high": None}
            line |= {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
            if name == "step_time_sec":
                line["interval_over"] = value.get("over")
            if "ratio" in name:
                line[name.replace("ratio", "verdict")] = value.get("verdict")
        else:
            line[name] = value
    line |= {f"ended_{end.value.lower()}": row.ends.get(end, 0) for end in TrialStatus}
    price = summary.price
    line["price_usd_per_gpu_hour"] = None if price is None else price.usd_per_gpu_hour
    line["price_source"] = None if price is None else price.source
    line["profile_note"] = summary.profile_note
    return line


def _price(price: cost.Price) -> dict[str, Any]:
    dated = None if price.dated is None else price.dated.isoformat()
    return {**_fields(price, "name", "usd_per_gpu_hour", "source"), "dated": dated, "shape": price.shape}


def _cost(configuration_cost: cost.Cost) -> dict[str, Any]:
    return {
        "price": _price(configuration_cost.price),
        "usd_per_1000_samples": asdict(configuration_cost.usd_per_1000_samples),
        "usd_per_million_useful_tokens": asdict(configuration_cost.usd_per_million_useful_tokens),
        "fine_tuning_10000_samples": [
            {
                "gpus": plan.gpus,
                "speedup": plan.scaling.speedup,
                "speedup_is_measured": plan.scaling.is_measured,
                "speedup_source": plan.scaling.source,
                "training_sec": asdict(plan.training_sec),
                "usd": asdict(plan.usd),
                "startup_sec": plan.startup_sec,
                "boot_volume_usd": plan.boot_volume_usd,
                "usd_billed": asdict(plan.usd_billed),
            }
            for plan in configuration_cost.fine_tunings
        ],
    }


def _billed(worker_time: cost.WorkerTime | None) -> dict[str, Any] | None:
    if worker_time is None:
        return None
    return {
        **_fields(worker_time, "workers", "held_sec", "useful_sec", "useful_percent"),
        "phases_sec": dict(worker_time.by_phase),
        "idle_sec": worker_time.idle_sec,
        "unknown": list(worker_time.unknown),
    }


def _fields(record: Any, *names: str) -> Any:
    """Return these fields of a dataclass, in this order; None for None."""
    return None if record is None else {name: getattr(record, name) for name in names}


def _plain(value: object) -> object:
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


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
    settings = {
        result.trial_id: {
            name: " ".join(value) if isinstance(value := getattr(result.trial, name), tuple) else value
            for name in _TRIAL_SETTINGS
        }
        for result in run.results
    }
    rows = [settings[trial_id] for trial_id in run.trials["trial_id"]]
    return pd.concat([run.trials, pd.DataFrame(rows, columns=list(_TRIAL_SETTINGS), index=run.trials.index)], axis=1)


def costs(summary: Summary) -> pd.DataFrame:
    """Return the cost of every configuration at every price, one row per fact; empty without a price.

    A fact is its name with its unit, its value, and its interval, if it has one.
    """
    rows: list[tuple[object, ...]] = []
    for row in summary.rows:
        for priced in row.costs:
            price, dated = priced.price, priced.price.dated
            facts: list[tuple[int, str, formatting.HasInterval | float | None, str | None]] = [
                (1, name, getattr(priced, name), None)
                for name in ("usd_per_1000_samples", "usd_per_million_useful_tokens")
            ]
            for plan in priced.fine_tunings:
                basis = "measured" if plan.scaling.is_measured else "assumed"
                facts += [
                    (plan.gpus, f"speedup_{basis}", plan.scaling.speedup, plan.scaling.source),
                    (plan.gpus, "training_sec_10000_samples", plan.training_sec, None),
                    (plan.gpus, "usd_10000_samples", plan.usd, None),
                    (plan.gpus, "usd_billed_10000_samples", plan.usd_billed, None),
                    (plan.gpus, "startup_sec", plan.startup_sec, None),
                    (plan.gpus, "boot_volume_usd", plan.boot_volume_usd, None),
                ]
            price_columns = (row.label, price.name, price.usd_per_gpu_hour, price.source, dated and dated.isoformat())
            rows += [
                (*price_columns, gpus, name, *_value_and_interval(value), source) for gpus, name, value, source in facts
            ]
    table = pd.DataFrame(rows, columns=list(_COST_COLUMNS))
    table = table.astype(dict.fromkeys(("value", "low", "high"), "float64"))
    table = table[table["value"].notna()].reset_index(drop=True)
    table.insert(0, "run_id", summary.record.run_id)
    return table


def _value_and_interval(fact: formatting.HasInterval | float | None) -> tuple[float | None, float | None, float | None]:
    return (fact, None, None) if fact is None or isinstance(fact, (int, float)) else (fact.value, fact.low, fact.high)
