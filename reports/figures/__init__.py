"""The report's figures: one file each, one shared style. `CHARTS` is their order on the page."""

from __future__ import annotations

from reports.figures.executive_summary import EXECUTIVE_SUMMARY
from reports.figures.style import Chart
from reports.figures.training_performance import TRAINING_PERFORMANCE

CHARTS: tuple[Chart, ...] = (EXECUTIVE_SUMMARY, TRAINING_PERFORMANCE)
