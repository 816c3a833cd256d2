"""Lint, format, types, import contracts and vocabulary as one test; mypy takes 20 s of one core."""

import subprocess

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_the_sources_pass_make_check() -> None:
    make = ("make", "--no-print-directory", "--assume-old=.venv/installed", "check")
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
