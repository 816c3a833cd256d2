"""Runs to load and report on."""

from tests.support.reports.fixtures import a10, draw_without_png, exact, folder, without_figures

__all__ = ["a10", "draw_without_png", "exact", "folder", "without_figures"]
