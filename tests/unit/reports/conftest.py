"""Fixtures of runs to load and report on."""

from tests.support.reports.fixtures import a10, draw_without_png, folder

__all__ = ["a10", "draw_without_png", "folder"]
