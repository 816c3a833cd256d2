"""What of this subject starts a process."""

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

IMAGE = ROOT / "image"


def test_hadolint_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run((program, IMAGE / "Dockerfile"), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
