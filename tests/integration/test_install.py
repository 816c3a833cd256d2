"""`make install`: Ctrl-C ends it with one line, and the next one goes on. Python and pip are programs that wait."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# `-m venv --clear FOLDER` makes a copy of this program; `-m pip install` begins a package, and waits for its end.
PYTHON = """#!/bin/sh
site=.venv/lib/python3/site-packages
case "$*" in
  *"-m pip --version") test -x .venv/bin/python ;;
  *"-m venv"*) mkdir -p .venv/bin $site; cp "$0" .venv/bin/python; echo x >> .venv/venvs ;;
  *"-m pip install"*)
    mkdir -p $site/half-1.dist-info
    echo installing
    test ! -e slow || exec sleep 60
    touch $site/half-1.dist-info/RECORD ;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_an_install_that_ctrl_c_stops_ends_with_one_line_and_the_next_goes_on(tmp_path: Path) -> None:
    project = tmp_path / "mein Ordner ü"
    (project / "tasks" / "cli").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tasks/cli/inv"):
        shutil.copy(ROOT / name, project / name)
    python = project / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (project / "slow").touch()
    argv = ("make", "install", "PYTHON=./python")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, cwd=project, start_new_session=True, **pipes) as running:  # type: ignore[call-overload]
        assert running.stdout is not None
        while running.stdout.readline() != "installing\n":
            pass
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        _, stderr = running.communicate(timeout=30)
    assert (running.returncode != 0, stderr.count("\n")) == (True, 1)
    assert not (project / ".venv" / "installed").exists()
    (project / "slow").unlink()
    half = project / ".venv" / "lib" / "python3" / "site-packages" / "half-1.dist-info"
    (half / "METADATA").touch()
    subprocess.run(argv, cwd=project, check=True, capture_output=True, timeout=60)
    assert (project / ".venv" / "installed").exists()
    assert (project / ".venv" / "venvs").read_text() == "x\n", "the environment stays"
    assert sorted(path.name for path in half.iterdir()) == ["RECORD"], "what was written in part is installed again"
