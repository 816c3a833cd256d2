"""How a job on the build VM fails: its kind, and its words."""

import contextlib
from collections.abc import Iterator

import pytest

from remote.image.vm_agent.job import Failed


@contextlib.contextmanager
def fails(kind: str, words: str | None = None) -> Iterator[None]:
    """The block raises Failed of this kind; `words` is a pattern for its message."""
    with pytest.raises(Failed, match=words) as caught:
        yield
    assert caught.value.kind == kind
