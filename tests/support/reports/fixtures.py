"""A run's folder to load and report on."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.figures import studio
from reports.figures.drawing import style
from reports.read.load import load
from reports.read.run import Run
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from tests.support.reports import showcase


@pytest.fixture(scope="session")
def a10(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Run]:
    """Two A10 nodes, every kind of trial, two configurations out of memory. Read it, do not write."""
    folder = tmp_path_factory.mktemp("a10")
    showcase.write(folder, workers=2, machine=showcase.A10, out_of_memory=("no-checkpointing", "seq-2048"))
    run = load(folder)
    return summarize(run), run


@pytest.fixture(scope="session")
def h200(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Run]:
    """One H200, every kind of trial. Read it, do not write."""
    folder = tmp_path_factory.mktemp("h200")
    showcase.write(folder)
    run = load(folder)
    return summarize(run), run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run goes; its name has a space and a quote, as users' folders do."""
    return tmp_path / "my 'results'" / "run"


@pytest.fixture(autouse=True)
def figures_drawn_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own take a second to start, once per report; test_figures.py has those that need them."""
    monkeypatch.setattr(studio, "MOST_PROCESSES", 0)
    monkeypatch.setattr(style, "PNG_DPI", 24)
