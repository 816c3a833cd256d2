"""`inv report` on a full disk: a retryable error with exit code 3, as in `inv collect`.

Its output is tested in tests/integration/tasks/reports.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from invoke import Context

from bench.records.paths import LEDGER_FILE
from remote.fleet.ledger import Ledger
from reports import exports
from reports.output import training_document
from reports.output import write_report as building
from tasks.errors import RetryableError, UsageError
from tasks.reports import report
from tests.support.faults import full_disk
from tests.support.reports import synthetic, training_run

MakeContext = Callable[..., Context]


def retryable_error(context: Context, formats: Sequence[str] = ()) -> str:
    with pytest.raises(RetryableError) as raised:
        report.write_report(context, "r", against=None, formats=formats)
    assert raised.value.exit_code == 3
    return str(raised.value)


@pytest.fixture
def folder(project: Path) -> Path:
    return project / "results" / "r"


DISK_FULL = "No space left on device; "


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "CHARTS", ())
    monkeypatch.setattr(training_document, "_picture", lambda _: None)


@pytest.mark.usefixtures("without_figures")
def test_a_full_disk(folder: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    training_run.write_run(folder)
    with monkeypatch.context() as full:
        full.setattr(building, "write_atomic", full_disk)
        assert DISK_FULL in retryable_error(context())
    monkeypatch.setitem(exports.FORMATS, "tensorboard", full_disk)
    assert DISK_FULL in retryable_error(context(), ["tensorboard"])


def test_a_training_that_has_not_ended_has_no_page_yet(folder: Path, context: MakeContext) -> None:
    training_run.write_run(folder)
    (folder / LEDGER_FILE).unlink()
    Ledger.create(folder / LEDGER_FILE, ["train"])
    with pytest.raises(RetryableError) as raised:
        report.write_report(context(), "r", against=None)
    assert raised.value.remedy.startswith("`inv ")
    assert not (folder / "report").exists()


@pytest.mark.usefixtures("without_figures")
def test_files_for_other_tools_are_written_next_to_the_report_and_listed(
    folder: Path, context: MakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.exact_run(folder)
    report.write_report(context(), "r", against=None, formats=["tensorboard", "tensorboard"])
    assert capsys.readouterr().out.splitlines()[-2:] == [
        *("results/r/report/index.html", "results/r/report/tensorboard")
    ]
    assert len(list((folder / "report/tensorboard").iterdir())) == 8


def test_a_format_without_its_package_is_refused_before_anything_is_written(
    folder: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.exact_run(folder)
    monkeypatch.setattr(exports, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install tensorboard wandb") as refused:
        report.write_report(context(), "r", against=None, formats=["tensorboard,wandb"])
    assert refused.value.exit_code == 2
    assert not (folder / "report").exists()


def test_allow_needs_a_run_to_compare_with_and_a_known_condition(folder: Path, context: MakeContext) -> None:
    synthetic.exact_run(folder)
    for against, allow in ((None, "lock"), ("r", "colour")):
        with pytest.raises(UsageError, match="--allow"):
            report.write_report(context(), "r", against=against, allow=[allow])
