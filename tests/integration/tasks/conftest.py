"""Fixtures: settings, and the copy of the project that they belong to."""

from tests.support.project_copy import (
    context,
    inv,
    no_settings_from_this_machine,
    project,
    settled,
)
from tests.support.reports.fixtures import figures_drawn_in_this_process, undrawn

__all__ = [
    "context",
    "figures_drawn_in_this_process",
    "inv",
    "no_settings_from_this_machine",
    "project",
    "settled",
    "undrawn",
]
