"""Entry point of Invoke, loaded as module `tasks`. The pop lets the import below find the package of that name."""

import sys

sys.modules.pop("tasks", None)

from tasks import ns  # noqa: E402, F401
