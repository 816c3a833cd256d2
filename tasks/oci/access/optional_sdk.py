"""One-line error for a missing Oracle SDK, which is an optional dependency."""

import contextlib
from collections.abc import Iterator

from tasks.errors import UsageError


@contextlib.contextmanager
def require_sdk() -> Iterator[None]:
    """Guard an import of modules that use the SDK. Raises UsageError if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the tenancy tasks need Oracle's SDK ({error.name} is missing)",
            remedy="type: pip install '.[tenancy]' (500 MB)",
        ) from error
