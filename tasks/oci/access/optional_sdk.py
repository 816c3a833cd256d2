"""Oracle's SDK is optional: without it one line says how to get it."""

import contextlib
from collections.abc import Iterator

from tasks.errors import UsageError


@contextlib.contextmanager
def needs_sdk() -> Iterator[None]:
    """Within, modules that use the SDK are imported. Raises UsageError where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the tenancy's tasks need Oracle's SDK ({error.name} is missing); type: pip install '.[tenancy]' (500 MB)"
        ) from None
