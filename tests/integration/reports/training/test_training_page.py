"""Files of a training's report, and a page in which all text of the data is escaped."""

import dataclasses
from pathlib import Path

from bench.records.training import SampleAnswer
from reports.training import page
from tests.support.reports.training_run import RECORD, write_run


def test_every_file_is_written_and_foreign_text_is_escaped(tmp_path: Path) -> None:
    answer = SampleAnswer(prompt="<script>alert(1)</script>", before="no", after="yes & more")
    report = page.build(write_run(tmp_path, dataclasses.replace(RECORD, answers=[answer])))
    folder = report.index.parent
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [
        *("evaluations.csv", "figures/course.png", "figures/course.svg", "figures/loss.png", "figures/loss.svg"),
        *("index.html", "report.md", "settings.json", "steps.csv"),
    ]
    html = report.index.read_text()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "US dollars for the steps" in html
    assert "killed by SIGKILL" in html
    heads, first, _ = (folder / "steps.csv").read_text().splitlines()
    assert heads.startswith("run_id,configuration,step,loss,learning_rate")
    assert first.startswith("r,train,1,2.0,")
    assert (folder / "evaluations.csv").read_text().splitlines()[1].startswith("r,train,0,2.0,")
