"""A comparison as files and tables: compare.json for programs, a frame for figures, cells for the terminal.

Frame `comparison`, one row per metric and configuration of a later run:

| column | meaning |
|---|---|
| configuration, kind, metric, run_id | what was compared, and in which later run; `metric` ends in its unit |
| context | what a measurement was taken on, as JSON; empty for the metrics of steps |
| family | the rows that are corrected together: speed, parts of a step, energy, or a kind of trial |
| verdict, why | "faster", "same", "slower" or "unknown", and what that rests on |
| speed_ratio, low, high | above 1: `run_id` is faster, also for durations; its 95 % interval |
| p_value, p_corrected | of this row alone, and after Holm's correction over its family |
| shows_percent | the smallest difference that could have been shown at the row's place in Holm's order |
| before, after | the first run's value and this one's, in the metric's unit |
| before_low, before_high, after_low, after_high | their 95 % intervals |
| before_processes, after_processes, before_workers, after_workers | over how many |
| before_noise_percent, after_noise_percent | standard deviation between processes (workers included) |
| before_steps_noise_percent, after_steps_noise_percent | standard deviation of steps within a process |

Missing is NaN.
"""

import json
from dataclasses import asdict
from typing import Any

import pandas as pd

from reports.comparison.compare import ComparedRow, Comparison

_WORDS = ("configuration", "kind", "metric", "context", "run_id", "family", "verdict", "why")
_OF_ROW = (*_WORDS, "speed_ratio", "low", "high", "p_value", "p_corrected", "shows_percent")
_OF_SIDE = {
    "": "value",
    "_low": "low",
    "_high": "high",
    "_processes": "n_processes",
    "_workers": "n_workers",
    "_noise_percent": "processes_noise_percent",
    "_steps_noise_percent": "steps_noise_percent",
}


def frame(of: Comparison) -> pd.DataFrame:
    """The comparison's rows, in their order."""
    lines = []
    for row in of.rows:
        line: dict[str, Any] = {name: getattr(row, name) for name in _OF_ROW}
        for when, side in (("before", row.before), ("after", row.after)):
            line |= {
                f"{when}{ending}": None if side is None else getattr(side, name) for ending, name in _OF_SIDE.items()
            }
        lines.append(line)
    columns = [*_OF_ROW, *(f"{when}{ending}" for when in ("before", "after") for ending in _OF_SIDE)]
    return pd.DataFrame(lines, columns=columns).astype(
        {name: "str" if name in _WORDS else "float64" for name in columns}
    )


def to_json(of: Comparison) -> bytes:
    """compare.json: the comparison for programs; reports/README.md documents every field."""
    document = {
        "kind": "comparison",
        "schema_version": 1,
        "runs": list(of.run_ids),
        "tolerance_percent": 100.0 * of.tolerance,
        "exit_code": of.exit_code,
        "allowed": list(of.allowed),
        "unlike": [
            {"name": one.name, "refused": one in of.refused, "values": {run: list(held) for run, held in one.values}}
            for one in of.unlike
        ],
        "only_in": {run_id: list(labels) for run_id, labels in of.only_in.items() if labels},
        "rejected_files": dict(of.rejected),
        "over_all": [_row_json(row) for row in of.over_all],
        "rows": [_row_json(row) for row in of.rows],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _row_json(row: ComparedRow) -> dict[str, Any]:
    flat = asdict(row)
    last = {name: flat.pop(name) for name in ("before", "after")}
    context = flat.pop("context")
    return flat | last | {"context": json.loads(context) if context else {}}
