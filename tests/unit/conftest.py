"""A unit test starts no process and draws no figure; what does belongs into tests/integration. This guard holds it."""

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
    """Setup and call, fixtures included. Not teardown: after the last test, servers of other folders end there."""
    if Path(__file__).parent not in item.path.parents:  # pytest calls these hooks for tests of every folder
        yield
        return
    drawing = [(sys.modules["matplotlib.figure"].Figure, "savefig")] if "matplotlib.figure" in sys.modules else []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (*_FORBIDDEN, *drawing):
            patch.setattr(owner, name, _refuse)
        yield
