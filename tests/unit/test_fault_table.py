"""tests/faults/README.md says which test shows which fault: what it names must be there."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?!fault \|)(?!-)", re.MULTILINE)
NAME = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    modules = {path.stem: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    tests = re.findall(r"def (test_\w+)", "\n".join(modules.values()))
    rows = [line for line in (TESTS / "faults" / "README.md").read_text().splitlines() if ROW.match(line)]
    assert len(rows) > 20
    named = [name for row in rows for name in NAME.findall(row)]
    assert [name for name in named if name not in modules and not any(name in test for test in tests)] == []
