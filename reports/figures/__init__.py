"""Figures of the report, one module each; `CHARTS` is their order on the page.

drawing: drawing tools shared by all figures
executive_summary, step_times, diagnostic, cost, memory, loss, run_comparison, hardware, loading, inference,
distributed: one figure each
"""

from reports.figures.cost import COST
from reports.figures.diagnostic import DIAGNOSTIC
from reports.figures.distributed import DISTRIBUTED
from reports.figures.drawing.layout import Chart
from reports.figures.executive_summary import EXECUTIVE_SUMMARY
from reports.figures.hardware import HARDWARE
from reports.figures.inference import INFERENCE
from reports.figures.loading import LOADING
from reports.figures.loss import LOSS
from reports.figures.memory import MEMORY
from reports.figures.run_comparison import RUN_COMPARISON
from reports.figures.step_times import STEP_TIMES

CHARTS: tuple[Chart, ...] = (
    EXECUTIVE_SUMMARY,
    STEP_TIMES,
    HARDWARE,
    LOADING,
    INFERENCE,
    DIAGNOSTIC,
    COST,
    MEMORY,
    LOSS,
    DISTRIBUTED,
    RUN_COMPARISON,
)
