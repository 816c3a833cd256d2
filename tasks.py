"""Invoke loads this file under the name `tasks`, which hides the package of the same name: hence the pop."""

import sys

sys.modules.pop("tasks", None)

from tasks import ns  # noqa: E402, F401
