"""A setting of a training that only its declaration adds: `inv` accepts and checks it, and a plan has its value."""

import subprocess
import sys
from pathlib import Path

import pytest

# The class is replaced before anything else imports it, as if its field were in the source.
PROGRAM = """
import dataclasses, json, sys
from bench.records import training
from bench.records.validation import setting

@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData(training.TrainingData):
    clip: float = setting(1.5, "clip there, above 0, at most 9", name="clip_at", gt=0, le=9)

training.TrainingData = TrainingData
if sys.argv[1] == "plan":
    from invoke import Config, Context
    from tasks.settings.load import load
    from tasks.fleet import trial_spec
    settings = load(Context(Config(project_location=".", runtime_path="f.yaml")))
    print(json.dumps(trial_spec.make_trial(settings, None, workers=1, max_hours=None).to_json()))
    sys.exit()
from tasks.cli.program import main
sys.exit(main(["inv", *sys.argv[1:]]))
"""


@pytest.fixture
def run(project: Path):
    def run(value: float, *argv: str) -> subprocess.CompletedProcess[str]:
        (project / "f.yaml").write_text(f"train: {{clip_at: {value}}}\n")
        return subprocess.run([sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, check=False)

    return run


def test_a_declared_setting_is_accepted_checked_and_planned(run) -> None:
    assert "train" in run(3.0, "--list").stdout
    assert run(3.0, "-f", "f.yaml", "runs").returncode == 0
    refused = run(10.0, "-f", "f.yaml", "runs")
    assert refused.returncode == 2
    assert refused.stderr.startswith("f.yaml:1: train.clip_at: expected a number above 0, at most 9")
    planned = run(3.0, "plan")
    assert '"clip": 3.0' in planned.stdout, planned.stderr
