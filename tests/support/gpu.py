"""Skip marker, comparison and trial runner for tests on a real GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from bench.records.result import TrialResult
from tests.support.paths import ROOT

DRIVER = Path("/dev/nvidiactl")
on_gpu = pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA GPU: {DRIVER} is missing")


def relative_error(actual: Any, expected: Any) -> float:
    """Return ||actual - expected|| / ||expected||; a non-finite number gives an infinite error."""
    actual, expected = actual.double(), expected.double()
    assert actual.shape == expected.shape
    if not actual.isfinite().all():
        return float("inf")
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-30))


def environment() -> dict[str, str]:
    """Return an environment in which a subprocess finds the package from any folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run_trial(
    trial: Trial, folder: Path, *, program: tuple[str, ...] = ("-m", "bench"), limit_sec: float = 300.0
) -> TrialResult:
    """Run a trial in a subprocess and return its result, written to `folder/out`."""
    (folder / "trial.json").write_text(trial.to_text())
    arguments = ("run", "--trial", str(folder / "trial.json"), "--out", str(folder / "out"))
    subprocess.run((sys.executable, *program, *arguments), env=environment(), timeout=limit_sec, check=False)
    return TrialResult.read(folder / "out" / "result.json")
