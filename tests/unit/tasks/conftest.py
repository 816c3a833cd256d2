"""Settings, and the copy of the project that they are of."""

from tests.support.project_copy import (
    context,
    no_settings_from_this_machine,
    project,
)

__all__ = ["context", "no_settings_from_this_machine", "project"]
