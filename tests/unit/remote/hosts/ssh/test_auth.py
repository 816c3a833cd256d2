"""Keys offered if the configured identity is not a key file, and messages for a host key that is not in known_hosts."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from paramiko.auth_strategy import AuthFailure

from remote.hosts.ssh.auth import KeyAuthStrategy, KnownKey, explain_refusal, fingerprint
from remote.hosts.ssh.config import Hop

KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 36, b"\0\0\0\x0bssh-ed25519" + b"o" * 36
TEXT = base64.b64encode(KEY).decode()


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


def test_the_message_for_an_unknown_key_ends_with_the_command_that_accepts_it() -> None:
    message = explain_refusal([], ["/home/me/my hosts"], "VM", 2222, "ssh-ed25519", KEY)
    assert f": ssh-ed25519 {fingerprint(KEY)}; " in message
    assert message.endswith(f": echo '[vm]:2222 ssh-ed25519 {TEXT}' >> '/home/me/my hosts'")


def test_the_message_for_a_changed_key_names_every_line_of_the_old_one() -> None:
    known = [KnownKey(file=file, line=line, kind="ssh-ed25519", blob=OTHER) for file, line in (("/a", 2), ("/b", 1))]
    message = explain_refusal(known, ["/a", "/b"], "vm", 22, "ssh-ed25519", KEY)
    for part in ("/a:2", "/b:1", fingerprint(OTHER), fingerprint(KEY)):
        assert part in message
    remove = "ssh-keygen -R vm -f /a && ssh-keygen -R vm -f /b"
    assert f"{remove} && echo 'vm ssh-ed25519 {TEXT}' >> /a" in message


def test_a_revoked_key_is_named_with_its_line() -> None:
    known = [KnownKey(file="/a", line=2, kind="ssh-ed25519", blob=KEY, revoked=True)]
    assert "revoked in /a:2" in explain_refusal(known, ["/a"], "vm", 22, "ssh-ed25519", KEY)
