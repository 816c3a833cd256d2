"""docs/extending.md, "A training setting": one field planted in a copy of one file, and nothing else changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

FIELD = '    dummy: float | None = setting(None, "a dummy; null: none", unit="percent", gt=0, le=50)\n'
BEFORE = "    keep_checkpoints: int = setting("
CODE = """
from invoke import Context
from bench.records.training import Training
from tasks.errors import UsageError
from tasks.fleet.declared import declared_values
from tasks.settings.layers import load
from tasks.settings.sections import Sections
from tasks.settings.sources import ProjectConfig
from tests.support.settings_file import render

print(next(line for line in render(Sections).splitlines() if "dummy" in line))
for text in ("2e+1", "50.5", "[1]"):
    open("f.yaml", "w").write(f"train:\\n  dummy: {text}\\n")
    try:
        settings = load(Context(ProjectConfig(runtime_path="f.yaml")))
        print(declared_values(Training, settings.train)["dummy"], settings.public()["train"]["dummy"])
    except UsageError as error:
        print(error)
"""


def test_a_training_setting_is_one_field(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bench", tmp_path / "bench", copy_function=os.link, ignore=shutil.ignore_patterns("*.pyc"))
    record = tmp_path / "bench" / "records" / "training.py"
    text = record.read_text(encoding="utf-8")
    assert BEFORE in text
    record.unlink()  # a hard link to the file of the project
    record.write_text(text.replace(BEFORE, FIELD + BEFORE), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    completed = subprocess.run(
        (sys.executable, "-c", CODE), cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    expected = "f.yaml:2: train.dummy: expected a number above 0, at most 50 percent, or null, found"
    assert completed.stdout.splitlines() == [
        "  dummy: null # a dummy, above 0, at most 50 percent; null: none",
        "20.0 20.0",
        f"{expected} 50.5",
        f"{expected} a list",
    ]
