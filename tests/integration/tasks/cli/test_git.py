"""Test of git's output with unusual file names."""

import os
import subprocess
from pathlib import Path

from remote.hosts.local import run_git


def test_a_file_name_in_another_encoding(tmp_path: Path) -> None:
    assert run_git(tmp_path, "status") is None
    subprocess.run(("git", "init", "--quiet", str(tmp_path)), check=True)
    (tmp_path / "folder").mkdir()
    assert run_git(tmp_path / "folder", "status") is None
    run_git(tmp_path, "config", "core.quotePath", "false")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/schl\xfcssel")).touch()
    assert run_git(tmp_path, "status", "--porcelain") == "?? schl\N{REPLACEMENT CHARACTER}ssel"
