"""Where faults are made: hosts in folders of their own (tests/unit/remote/hostyard.py), a disk that is soon full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.remote.hostyard import Yard, mounted


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as yard:
        yield yard


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; the test is skipped where we may not mount one."""
    with mounted(tmp_path / "small") as folder:
        yield folder
