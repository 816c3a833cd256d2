"""Settings, and a folder that has the project's. What runs in this process finds the project's code where it is."""

from tests.support.project_copy import (
    context,
    no_settings_from_this_machine,
)
from tests.support.project_copy import settled as project

__all__ = ["context", "no_settings_from_this_machine", "project"]
