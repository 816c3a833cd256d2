"""Keys offered if the configured identity is not a key file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from paramiko.auth_strategy import AuthFailure

from remote.hosts.ssh.auth import KeyAuthStrategy
from remote.hosts.ssh.config import Hop


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"a" * (1 << 20 | 1)),
    ],
)
def test_an_identity_that_is_not_a_regular_file_is_named_in_the_error(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    file, hop = tmp_path / "id", {"name": "vm", "hostname": "vm", "user": "me", "port": 22, "identity_agent": "none"}
    make(file)
    keys = KeyAuthStrategy(Hop(identity_files=(str(file), str(tmp_path / "none")), **hop))  # type: ignore[arg-type]
    assert list(keys.get_sources()) == []
    message = str(keys.login_error(AuthFailure([])))
    assert f"; {file} " in message
    assert "1,048,576 bytes" in message
    assert "SHA256:" not in message, "no key is offered"
