"""Fixtures: settings, and the copy of the project that they belong to."""

from tests.support.project_copy import context, inv, no_settings_from_this_machine, project, project_folder
from tests.support.reports.fixtures import draw_without_png, without_figures

__all__ = [
    "context",
    "draw_without_png",
    "inv",
    "no_settings_from_this_machine",
    "project",
    "project_folder",
    "without_figures",
]
