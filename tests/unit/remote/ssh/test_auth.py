"""Which keys are offered where what the configuration names is no file of a key."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from paramiko.auth_strategy import AuthFailure

from remote.ssh.auth import Keys
from remote.ssh.config import Hop


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"a" * (1 << 20 | 1)),
    ],
)
def test_an_identity_whose_reading_may_never_end_is_named(make: Callable[[Path], object], tmp_path: Path) -> None:
    file, hop = tmp_path / "id", {"name": "vm", "hostname": "vm", "user": "me", "port": 22, "identity_agent": "none"}
    make(file)
    keys = Keys(Hop(identity_files=(str(file), str(tmp_path / "none")), **hop))  # type: ignore[arg-type]
    assert list(keys.get_sources()) == []
    said = str(keys.complaint(AuthFailure([])))
    assert f"there was no key to offer; {file} is no file of at most 1,048,576 bytes;" in said
