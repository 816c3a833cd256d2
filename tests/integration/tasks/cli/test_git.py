"""What git says of the project, whatever its files are called."""

import os
from pathlib import Path

from tasks.cli.git import git


def test_a_name_in_another_encoding_is_no_reason_to_stop(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "core.quotePath", "false")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/schl\xfcssel")).touch()
    assert git(tmp_path, "status", "--porcelain") == "?? schl\N{REPLACEMENT CHARACTER}ssel"
