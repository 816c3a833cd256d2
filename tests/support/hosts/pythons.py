"""Other versions of Python, which hosts may have."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest


def other_python(version: str) -> str:
    """Return a working Python of that version, on PATH or from pyenv; skip the test if there is no such Python."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for program in [f"python{version}", *map(str, versions.glob(f"{version}.*/bin/python{version}"))]:
        with contextlib.suppress(OSError):
            if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
                return program
    pytest.skip(f"no Python {version} on this machine")
