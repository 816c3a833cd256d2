"""Files of a training's report, and a page in which all text of the data is escaped."""

import dataclasses
import re
from pathlib import Path

from bench.records.adapter import AdapterCheck
from reports.output.write_report import build_training
from tests.support.reports import hostile
from tests.support.reports.training_run import RECORD, SCORE, write_checked, write_run


def test_every_file_is_written_and_foreign_text_is_escaped(tmp_path: Path) -> None:
    row = dataclasses.replace(SCORE.shown[0], prompt="<script>alert(1)</script>", after="")
    report = build_training(
        write_run(tmp_path, dataclasses.replace(RECORD, score=dataclasses.replace(SCORE, shown=[row])))
    )
    folder = report.index.parent
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    figures = ("figures/loss.png", "figures/loss.svg")
    assert names == ["evaluations.csv", *figures, "index.html", "report.md", "steps.csv"]
    html = report.index.read_text()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert html.count("an empty answer") == 1
    assert "$4.00 an hour of all workers" in html
    assert "killed by SIGKILL" in html
    heads, first, _ = (folder / "steps.csv").read_text().splitlines()
    assert heads.startswith("run_id,configuration,step,loss,learning_rate")
    assert first.startswith("r,train,1,2.0,")
    assert (folder / "evaluations.csv").read_text().splitlines()[1].startswith("r,train,0,2.0,")


def test_score_and_answers_come_before_the_curve_and_the_next_commands_before_all(tmp_path: Path) -> None:
    html = html_of(write_run(tmp_path, dataclasses.replace(RECORD, score=SCORE)))
    titles = re.findall(r"<h2[^>]*>([^<]+)</h2>", html)
    assert titles[:4] == ["Score", "Held-out answers before and after", "Loss", "Predicted and actual"]
    assert html.index("adapter.check</span>") < html.index("<h2 ")
    assert "&lt;b&gt;p&lt;/b&gt;" in html
    assert "raised: " in html


def html_of(folder: Path) -> str:
    return build_training(folder).index.read_text()


def test_a_check_that_is_missing_or_damaged_is_named_with_its_command(tmp_path: Path) -> None:
    whole = html_of(write_checked(tmp_path / "whole", {f"e{number}": 2.0 for number in range(6)}))
    assert re.search(r"check, as trained</th>\s*<td[^>]*><span>2\.0000 \(1\.9000 to 2\.1000\)", whole)
    assert "inv adapter.check --run=run" in html_of(write_run(tmp_path / "run"))
    folder = write_checked(tmp_path / "bad", {"x": 1.0, "y": 2.0})
    hostile.rewrite_checksummed(
        folder / AdapterCheck.FILE, lambda document: hostile.set_value(document, ("forms",), [])
    )
    assert re.search(r"adapter-check\.json: .*; run <code>inv adapter\.check --run=bad<", html_of(folder))


def test_what_is_unknown_or_did_not_happen_has_no_row_and_no_section(tmp_path: Path) -> None:
    html = html_of(write_run(tmp_path / "run", dataclasses.replace(RECORD, peak_vram_bytes=None)))
    text = re.sub(r"<[^>]+>", " ", html.split("<main>")[1].split("</main>")[0])
    assert "unknown" not in text
    assert "None" not in text
    assert "Rejected files" not in text
