"""A run's folder to load and report on."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.figures import studio as drawing
from reports.figures.drawing import style


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run goes; its name has a space and a quote, as users' folders do."""
    return tmp_path / "my 'results'" / "run"


@pytest.fixture(autouse=True)
def figures_drawn_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own take a second to start, once per report; test_figures.py has those that need them."""
    monkeypatch.setattr(drawing, "MOST_PROCESSES", 0)
    monkeypatch.setattr(style, "PNG_DPI", 24)
