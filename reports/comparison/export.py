"""Export of a comparison: compare.json for programs, a data frame for figures.

Frame `comparison`, one row per metric and configuration of a later run:

| column | meaning |
|---|---|
| configuration, kind, metric, run_id | the compared metric (it ends in its unit) and the later run |
| context | conditions of a measurement, as JSON; empty for the metrics of steps |
| family | name of the rows corrected together: speed, parts of a step, energy, or a kind of trial |
| verdict, why | "faster", "same", "slower" or "unknown", and the reason |
| speed_ratio, low, high | above 1: `run_id` is faster, also for durations; its 95 % interval |
| p_value, p_corrected | p value of this row, before and after Holm's correction over its family |
| shows_percent | the smallest difference that could have been detected at the row's rank in Holm's order |
| before, after | the first run's value and the later run's, in the metric's unit |
| before_low, before_high, after_low, after_high | their 95 % intervals |
| before_processes, after_processes, before_workers, after_workers | numbers of processes and workers |
| before_noise_percent, after_noise_percent | standard deviation between processes (workers included) |
| before_steps_noise_percent, after_steps_noise_percent | standard deviation of steps within a process |

Missing is NaN.
"""

import json
from dataclasses import asdict
from typing import Any

import pandas as pd

from reports.comparison.compare import ASSUMED_DAY_EFFECT_PERCENT, ComparedRow, Comparison

_TEXT_COLUMNS = ("configuration", "kind", "metric", "context", "run_id", "family", "verdict", "why")
_ROW_COLUMNS = (*_TEXT_COLUMNS, "speed_ratio", "low", "high", "p_value", "p_corrected", "shows_percent")
_SIDE_FIELDS = {
    "": "value",
    "_low": "low",
    "_high": "high",
    "_processes": "n_processes",
    "_workers": "n_workers",
    "_noise_percent": "processes_noise_percent",
    "_steps_noise_percent": "steps_noise_percent",
}


def frame(comparison: Comparison) -> pd.DataFrame:
    """Return the comparison's rows as a data frame, in their order."""
    lines = []
    for row in comparison.rows:
        line: dict[str, Any] = {name: getattr(row, name) for name in _ROW_COLUMNS}
        for prefix, side in (("before", row.before), ("after", row.after)):
            line |= {
                f"{prefix}{suffix}": None if side is None else getattr(side, name)
                for suffix, name in _SIDE_FIELDS.items()
            }
        lines.append(line)
    columns = [*_ROW_COLUMNS, *(f"{prefix}{suffix}" for prefix in ("before", "after") for suffix in _SIDE_FIELDS)]
    return pd.DataFrame(lines, columns=columns).astype(
        {name: "str" if name in _TEXT_COLUMNS else "float64" for name in columns}
    )


def to_json(comparison: Comparison) -> bytes:
    """Render compare.json, the comparison for programs; reports/README.md documents every field."""
    document = {
        "kind": "comparison",
        "schema_version": 1,
        "runs": list(comparison.run_ids),
        "tolerance_percent": 100.0 * comparison.tolerance,
        "exit_code": comparison.exit_code,
        "assumed_day_effect_percent": ASSUMED_DAY_EFFECT_PERCENT,
        "allowed": list(comparison.allowed),
        "unlike": [
            {
                "name": difference.name,
                "refused": difference in comparison.refused,
                "values": {run: list(values) for run, values in difference.values},
            }
            for difference in comparison.differences
        ],
        "only_in": {run_id: list(labels) for run_id, labels in comparison.only_in.items() if labels},
        "rejected_files": dict(comparison.rejected),
        "over_all": [_row_json(row) for row in comparison.over_all],
        "rows": [_row_json(row) for row in comparison.rows],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _row_json(row: ComparedRow) -> dict[str, Any]:
    flat = asdict(row)
    sides = {name: flat.pop(name) for name in ("before", "after")}
    context = flat.pop("context")
    return flat | sides | {"context": json.loads(context) if context else {}}
