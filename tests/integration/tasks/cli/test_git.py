"""Test of git's output with unusual file names."""

import os
from pathlib import Path

from remote.hosts.local import run_git


def test_a_file_name_in_another_encoding(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet")
    run_git(tmp_path, "config", "core.quotePath", "false")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/schl\xfcssel")).touch()
    assert run_git(tmp_path, "status", "--porcelain") == "?? schl\N{REPLACEMENT CHARACTER}ssel"
