"""Other versions of Python, such as hosts may have."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest


def other_python(version: str) -> str:
    """A Python of that version that starts: on the PATH, or one of pyenv's, whose shims need not start; or a skip."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for program in [f"python{version}", *map(str, versions.glob(f"{version}.*/bin/python{version}"))]:
        with contextlib.suppress(OSError):
            if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
                return program
    pytest.skip(f"no Python {version} on this machine")
