"""Figures of the report, one module each; `CHARTS` is their order on the page.

drawing: drawing tools shared by all figures
renderer: drawing in several processes
executive_summary, worker_map, training_performance, diagnostic, cost, memory, telemetry, loss_curves, run_comparison,
hardware, loading, inference, distributed: one figure each; memory has two
"""

import json
from functools import partial

from bench.records.workloads import WORKLOADS, Workload
from reports import formatting
from reports.figures.cost import COST
from reports.figures.diagnostic import DIAGNOSTIC
from reports.figures.distributed import DISTRIBUTED
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.executive_summary import EXECUTIVE_SUMMARY
from reports.figures.hardware import HARDWARE
from reports.figures.inference import INFERENCE
from reports.figures.loading import LOADING
from reports.figures.loss_curves import LOSS_CURVES
from reports.figures.memory import MEMORY, SPEED_AND_MEMORY
from reports.figures.run_comparison import RUN_COMPARISON
from reports.figures.telemetry import TELEMETRY
from reports.figures.training_performance import TRAINING_PERFORMANCE
from reports.figures.worker_map import WORKER_MAP
from reports.read import measurements
from reports.read.measurements import MeasuredValue
from reports.read.run import Run
from reports.summary.summary import Summary

_MAX_QUANTITIES, _MAX_ROWS = 4, 12


def _make_chart(workload: Workload) -> Chart:
    """Make the figure of a workload from its registration."""
    suites = [suite.name for suite in workload.suites]
    return Chart(
        name=f"workload_{workload.name}",
        title=workload.title,
        needs=f"a trial of workload {workload.name}",
        command=f"inv bench --suite={suites[0]}" if suites else "",
        workload=workload.name,
        gather=partial(_gather_any, workload),
        is_folded=True,
    )


def _gather_any(workload: Workload, summary: Summary, run: Run) -> RowFigure | None:
    frame = run.measurements[(run.measurements["section"] == workload.name) & run.measurements["value"].notna()]
    names = [name for name in dict.fromkeys(frame["name"]) if name in run.measured][:_MAX_QUANTITIES]
    values = {name: _values(run, workload, name) for name in names}
    if not any(values.values()):
        return None
    shown = [value for quantity in values.values() for value in quantity]
    return RowFigure(
        header=make_header(summary, _title(workload, names[0], values[names[0]]), measurements.describe_spread(shown)),
        groups=tuple(_group(name, quantity) for name, quantity in values.items()),
        caption=f"The first quantities of {workload.title.lower()}; the tables below have all of them.",
    )


def _values(run: Run, workload: Workload, name: str) -> list[MeasuredValue]:
    keys = dict.fromkeys(key for context in run.measured[name]["context"] for key in json.loads(str(context)))
    values = measurements.select(run, name, *keys, kind=workload.name)
    return [value for value in values if value.value is not None and "window" not in value.context][:_MAX_ROWS]


def _group(name: str, values: list[MeasuredValue]) -> MarkGroup:
    title, unit, scale = measurements.title_unit_scale(name)
    marks = tuple(row_chart.measured_mark(value, "", scale=scale) for value in values)
    panel = Panel(title=", ".join(filter(None, (title, unit))), marks=marks)
    return MarkGroup(names=tuple(_row_name(value, values) for value in values), panels=(panel,))


def _row_name(value: MeasuredValue, values: list[MeasuredValue]) -> str:
    """Name a row by its configuration and by the part of its context that differs between the rows."""
    differing = {
        key: item for key, item in value.context.items() if any(other.context.get(key) != item for other in values)
    }
    return ", ".join((value.configuration, *(f"{key} {item}" for key, item in differing.items())))


def _title(workload: Workload, name: str, values: list[MeasuredValue]) -> str:
    title, unit, scale = measurements.title_unit_scale(name)
    numbers = sorted(value.value / scale for value in values if value.value is not None)
    span = dict.fromkeys((formatting.number(numbers[0]), formatting.number(numbers[-1])))
    return f"{workload.title}: {title} {' to '.join(span)} {unit}".rstrip()


_CHARTS: tuple[Chart, ...] = (
    EXECUTIVE_SUMMARY,
    SPEED_AND_MEMORY,
    WORKER_MAP,
    TRAINING_PERFORMANCE,
    HARDWARE,
    LOADING,
    INFERENCE,
    DIAGNOSTIC,
    COST,
    MEMORY,
    TELEMETRY,
    LOSS_CURVES,
    DISTRIBUTED,
)
CHARTS = (
    *_CHARTS,
    *(
        _make_chart(workload)
        for workload in WORKLOADS.values()
        if not (workload.is_compared or workload.has_training or workload.name in {chart.workload for chart in _CHARTS})
    ),
    RUN_COMPARISON,
)
