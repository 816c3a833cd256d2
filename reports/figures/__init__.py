"""Figures of the report, one module each; `CHARTS` is their order on the page.

drawing: drawing tools shared by all figures
renderer: drawing in several processes
executive_summary, training_performance, diagnostic, cost, memory, telemetry, loss_curves, run_comparison, hardware,
loading, inference, distributed: one figure each
"""

from reports.figures.cost import COST
from reports.figures.diagnostic import DIAGNOSTIC
from reports.figures.distributed import DISTRIBUTED
from reports.figures.drawing.layout import Chart
from reports.figures.executive_summary import EXECUTIVE_SUMMARY
from reports.figures.hardware import HARDWARE
from reports.figures.inference import INFERENCE
from reports.figures.loading import LOADING
from reports.figures.loss_curves import LOSS_CURVES
from reports.figures.memory import MEMORY
from reports.figures.run_comparison import RUN_COMPARISON
from reports.figures.telemetry import TELEMETRY
from reports.figures.training_performance import TRAINING_PERFORMANCE

CHARTS: tuple[Chart, ...] = (
    EXECUTIVE_SUMMARY,
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
    RUN_COMPARISON,
)
