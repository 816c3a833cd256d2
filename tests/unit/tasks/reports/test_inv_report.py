"""How `inv report` ends where the disk takes no files: as `inv collect` does, to be typed again once there is room.

What it prints of a run is in tests/integration/tasks/reports."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from invoke import Context

from reports.exports import write
from reports.output import build as building
from reports.training import page
from tasks.errors import RetryableError, UsageError
from tasks.reports import report
from tests.support.faults import full_disk
from tests.support.reports import synthetic, training_run

MakeContext = Callable[..., Context]


def ends(context: Context, formats: Sequence[str] = ()) -> str:
    with pytest.raises(RetryableError) as ended:
        report.write_report(context, "r", watch=False, against=None, formats=formats)
    assert ended.value.exit_code == 3
    return str(ended.value)


@pytest.fixture
def folder(project: Path) -> Path:
    return project / "results" / "r"


FULL = "No space left on device; check owner, permissions and free space, then type the same again"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "Studio", contextlib.nullcontext)
    monkeypatch.setattr(building, "_draw", lambda *_: ((), ()))


@pytest.mark.usefixtures("undrawn")
def test_a_run_on_a_full_disk(folder: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.exact_run(folder)
    monkeypatch.setattr(building, "write_atomic", full_disk)
    assert FULL in ends(context())


def test_a_training_on_a_full_disk(folder: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run.a_run(folder)
    for each in (page.curves, page.course):
        monkeypatch.setattr(each, "draw", lambda _, **__: None)
    with monkeypatch.context() as full:
        full.setattr(page, "write_atomic", full_disk)
        assert FULL in ends(context())
    monkeypatch.setattr(write, "FORMATS", {**write.FORMATS, "mlperf": full_disk})
    assert FULL in ends(context(), ["mlperf"])


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_cannot_be_trusted_stays_a_wrong_input(folder: Path, context: MakeContext) -> None:
    synthetic.exact_run(folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json") as refused:
        report.write_report(context(), "r", watch=False, against=None)
    assert refused.value.exit_code == 2
