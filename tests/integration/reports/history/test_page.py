"""The page of a history: every file is written, and text of a run is escaped."""

import csv
import json
from pathlib import Path

import pytest

from reports.history.page import write_page
from reports.history.series import read_history
from reports.read.run import ReportWriteError
from tests.support.reports import history, synthetic


def test_the_page_has_every_point_and_no_markup_of_a_run(tmp_path: Path) -> None:
    history.write_history(tmp_path)
    run = synthetic.record((synthetic.trial("<b>=1+1</b>"),), run_id="hostile")
    synthetic.write_results(
        tmp_path / "hostile", run, [synthetic.result(plan, run_id="hostile") for plan in run.planned]
    )
    index = write_page(read_history(tmp_path), tmp_path)
    page = index.read_text(encoding="utf-8")
    assert "<b>=1+1" not in page
    assert page.count("<svg") == 2
    rows = list(csv.DictReader((index.parent / "history.csv").read_text().splitlines()))
    assert len(rows) == 2 * history.RUNS + 2
    assert [json.loads(row["step_percent"]) < 0 for row in rows if row["step_percent"]] == [True]
    assert (index.parent / "history.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    history.write_benchmarks(tmp_path, 1)
    (tmp_path / "history").write_text("a file")
    with pytest.raises(ReportWriteError):
        write_page(read_history(tmp_path), tmp_path)
