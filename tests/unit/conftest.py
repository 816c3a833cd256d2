"""A unit test starts no process and draws no figure; what does belongs into tests/integration. This guard holds it."""

from __future__ import annotations

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Setup, call and teardown, so that fixtures of every scope are held to it."""
    if Path(__file__).parent not in item.path.parents:  # pytest calls this hook for tests of every folder
        return (yield)

    def refuse(*_args: object, **_options: object) -> NoReturn:
        raise AssertionError("a unit test may not do this; move it to tests/integration")

    drawing = [(sys.modules["matplotlib.figure"].Figure, "savefig")] if "matplotlib.figure" in sys.modules else []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (*_FORBIDDEN, *drawing):
            patch.setattr(owner, name, refuse)
        return (yield)
