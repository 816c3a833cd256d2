"""Assertion that a job on the build VM fails with a given kind."""

import contextlib
from collections.abc import Iterator

import pytest

from remote.agent.shared.errors import VmAgentError


@contextlib.contextmanager
def raises_agent_error(kind: str, pattern: str | None = None) -> Iterator[None]:
    """Assert that the block raises VmAgentError of this kind; `pattern` is a regular expression for its message."""
    with pytest.raises(VmAgentError, match=pattern) as caught:
        yield
    assert caught.value.kind == kind
