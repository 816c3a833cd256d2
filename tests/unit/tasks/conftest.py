"""Fixtures: settings, and a project folder with them. Code in this process is imported from the repository."""

from tests.support.project_copy import (
    context,
    no_settings_from_this_machine,
)
from tests.support.project_copy import project_folder as project

__all__ = ["context", "no_settings_from_this_machine", "project"]
