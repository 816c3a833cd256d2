"""What tests on a real GPU share: when they are skipped, and how they run a trial."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records import Trial
from bench.records.result import TrialResult
from tests.support.paths import ROOT

DRIVER = Path("/dev/nvidiactl")
on_gpu = pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA GPU: {DRIVER} is missing")


def environment() -> dict[str, str]:
    """For processes that tests start: the package is found from anywhere."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run_trial(
    trial: Trial, folder: Path, *, program: tuple[str, ...] = ("-m", "bench"), limit_sec: float = 300.0
) -> TrialResult:
    """Run it in a process of its own; its result, which lies in `folder/out`."""
    (folder / "trial.json").write_text(trial.to_text())
    words = ("run", "--trial", str(folder / "trial.json"), "--out", str(folder / "out"))
    subprocess.run((sys.executable, *program, *words), env=environment(), timeout=limit_sec, check=False)
    return TrialResult.read(folder / "out" / "result.json")
