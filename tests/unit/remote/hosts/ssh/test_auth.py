"""An identity that is not a key file, and messages for a host key that is not in known_hosts."""

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paramiko.auth_strategy import AuthFailure

from remote.hosts.ssh.auth import KeyAuthStrategy, KnownKey, StrictHostKeyPolicy, fingerprint
from remote.hosts.ssh.config import Hop

KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 36, b"\0\0\0\x0bssh-ed25519" + b"o" * 36
TEXT = base64.b64encode(KEY).decode()


def hop(**fields: Any) -> Hop:
    return Hop(name="vm", hostname="VM", user="me", identity_agent="none", **{"port": 22, **fields})


def test_an_identity_that_is_not_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    keys = KeyAuthStrategy(hop(identity_files=(str(tmp_path), str(tmp_path / "none"))))
    assert list(keys.get_sources()) == []
    message = str(keys.login_error(AuthFailure([])))
    assert f"; {tmp_path} cannot be read: " in message
    assert "SHA256:" not in message, "no key is offered"


def refusal(known: list[KnownKey], *files: str, port: int = 22) -> str:
    policy = StrictHostKeyPolicy(hop(port=port, known_hosts_files=files))
    policy._known = known
    key: Any = SimpleNamespace(get_name=lambda: "ssh-ed25519", asbytes=lambda: KEY)
    return policy.refusal_reason(key)


def test_the_message_for_a_refused_key_names_each_line_and_the_command_that_accepts_it() -> None:
    message = refusal([], "/no/such hosts", port=2222)
    assert f": ssh-ed25519 {fingerprint(KEY)}; " in message
    assert message.endswith(f": echo '[vm]:2222 ssh-ed25519 {TEXT}' >> '/no/such hosts'")
    known = [KnownKey(file=file, line=line, kind="ssh-ed25519", blob=OTHER) for file, line in (("/a", 2), ("/b", 1))]
    message = refusal(known, "/a", "/b")
    assert all(part in message for part in ("/a:2", "/b:1", fingerprint(OTHER), fingerprint(KEY)))
    remove = "ssh-keygen -R vm -f /a && ssh-keygen -R vm -f /b"
    assert f"{remove} && echo 'vm ssh-ed25519 {TEXT}' >> /a" in message
    revoked = KnownKey(file="/a", line=2, kind="ssh-ed25519", blob=KEY, revoked=True)
    assert "revoked in /a:2" in refusal([revoked], "/a")
