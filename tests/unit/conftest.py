"""Guard that fails a unit test if it starts a process or renders a figure; such tests belong in tests/integration."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import pytest

_FORBIDDEN = [
    (subprocess.Popen, "_execute_child"),
    (BaseProcess, "start"),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp")),
]


def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise AssertionError("a unit test may not do this; move it to tests/integration")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _guard(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _guard(item):
        return (yield)


@contextlib.contextmanager
def _guard(item: pytest.Item) -> Iterator[None]:
    """Forbid processes and figures during setup and call. Not during teardown: other folders' servers end there."""
    if Path(__file__).parent not in item.path.parents:  # pytest calls these hooks for tests in all folders
        yield
        return
    drawing = [(sys.modules["matplotlib.figure"].Figure, "savefig")] if "matplotlib.figure" in sys.modules else []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (*_FORBIDDEN, *drawing):
            patch.setattr(owner, name, _refuse)
        yield
