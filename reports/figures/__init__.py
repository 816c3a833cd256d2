"""Figures of the report, one module each; `CHARTS` is their order on the page.

drawing: drawing tools shared by all figures
per_workload: figures of a single workload
renderer: drawing in several processes
executive_summary, speed_and_memory, worker_map, training_performance, diagnostic, cost, memory, telemetry, loss_curves,
run_comparison: one figure each
"""

from bench.records.workloads import WORKLOADS
from reports.figures.cost import COST
from reports.figures.diagnostic import DIAGNOSTIC
from reports.figures.drawing.chart import Chart
from reports.figures.executive_summary import EXECUTIVE_SUMMARY
from reports.figures.loss_curves import LOSS_CURVES
from reports.figures.memory import MEMORY
from reports.figures.per_workload import generic
from reports.figures.per_workload.distributed import DISTRIBUTED
from reports.figures.per_workload.hardware import HARDWARE
from reports.figures.per_workload.inference import INFERENCE
from reports.figures.per_workload.loading import LOADING
from reports.figures.run_comparison import RUN_COMPARISON
from reports.figures.speed_and_memory import SPEED_AND_MEMORY
from reports.figures.telemetry import TELEMETRY
from reports.figures.training_performance import TRAINING_PERFORMANCE
from reports.figures.worker_map import WORKER_MAP

__all__ = ["CHARTS", "RUN_COMPARISON"]

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
        generic.make_chart(workload)
        for workload in WORKLOADS.values()
        if not (workload.is_compared or workload.has_training or workload.name in {chart.workload for chart in _CHARTS})
    ),
    RUN_COMPARISON,
)
