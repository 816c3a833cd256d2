"""A run's folder to load and report on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run goes; its name has a space and a quote, as users' folders do."""
    return tmp_path / "my 'results'" / "run"
