"""Runs to load and report on."""

from tests.support.reports.fixtures import a10, figures_drawn_in_this_process, folder, h200

__all__ = ["a10", "figures_drawn_in_this_process", "folder", "h200"]
