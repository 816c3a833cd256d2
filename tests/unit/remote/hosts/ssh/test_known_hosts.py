"""Keys that a host may have, read from known_hosts files like OpenSSH, and the message for any other key."""

import base64
from pathlib import Path

import pytest

from remote.hosts.base import InvalidAddress
from remote.hosts.ssh import connection
from remote.hosts.ssh.config import Hop
from remote.hosts.ssh.known_hosts import explain_refusal, fingerprint, read_known_keys

KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 36, b"\0\0\0\x0bssh-ed25519" + b"o" * 36
TEXT = base64.b64encode(KEY).decode()


def read_blobs(tmp_path: Path, content: str, host: str = "vm", port: int = 22) -> list[bytes]:
    (tmp_path / "known_hosts").write_text(content)
    return [key.blob for key in read_known_keys([str(tmp_path / "known_hosts"), "/no/such/file"], host, port)]


@pytest.mark.parametrize(
    ("names", "host", "port", "is_known"),
    [
        ("vm", "vm", 22, True),
        ("vm", "VM", 22, True),
        ("vm", "vm2", 22, False),
        ("other,vm", "vm", 22, True),
        ("*.example.com", "a.example.com", 22, True),
        ("*.example.com,!a.example.com", "a.example.com", 22, False),
        ("v?", "vm", 22, True),
        ("[vm]:2222", "vm", 2222, True),
        ("[vm]:2222", "vm", 22, False),
        ("[vm]:2222", "v", 2222, False),
        ("vm", "vm", 2222, True),
        ("#vm", "#vm", 22, False),
        ("::1", "::1", 22, True),
        ("[::1]:2222", "::1", 2222, True),
    ],
)
def test_names_patterns_and_ports_match_as_openssh_matches_them(
    tmp_path: Path, names: str, host: str, port: int, is_known: bool
) -> None:
    assert read_blobs(tmp_path, f"{names} ssh-ed25519 {TEXT} a comment\n", host, port) == ([KEY] if is_known else [])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "vm",
        "vm ssh-ed25519",
        "vm ssh-ed25519 not*base64",
        f"@cert-authority vm ssh-ed25519 {TEXT}",
        "|1|x|y k AAAA",
    ],
)
def test_a_line_without_a_valid_key_accepts_no_key(tmp_path: Path, line: str) -> None:
    assert read_blobs(tmp_path, f"{line}\n") == []


def test_a_line_with_the_port_takes_precedence(tmp_path: Path) -> None:
    both = f"vm ssh-ed25519 {base64.b64encode(OTHER).decode()}\n[vm]:2222 ssh-ed25519 {TEXT}\n"
    assert read_blobs(tmp_path, both, port=2222) == [KEY]


def test_an_unreadable_known_hosts_file_is_an_invalid_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_permission_error(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/home/me/.ssh/known_hosts")

    monkeypatch.setattr(connection, "read_known_keys", raise_permission_error)
    with pytest.raises(InvalidAddress, match=r"/home/me/\.ssh/known_hosts: .*Permission denied; "):
        connection.StrictHostKeyPolicy(Hop(name="vm", hostname="vm", user="me", port=22))


def test_the_message_for_an_unknown_key_ends_with_the_command_that_accepts_it(tmp_path: Path) -> None:
    file = f"{tmp_path}/my hosts"
    message = explain_refusal([], [file], "VM", 2222, "ssh-ed25519", KEY)
    assert f": ssh-ed25519 {fingerprint(KEY)}; " in message
    assert message.endswith(f": echo '[vm]:2222 ssh-ed25519 {TEXT}' >> '{file}'")


def test_the_message_for_a_changed_key_names_every_line_of_the_old_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"# mine\nvm ssh-ed25519 {base64.b64encode(OTHER).decode()}\n")
    second.write_text(f"vm ssh-ed25519 {base64.b64encode(OTHER).decode()}\n")
    files = [str(first), str(second)]
    message = explain_refusal(read_known_keys(files, "vm", 22), files, "vm", 22, "ssh-ed25519", KEY)
    for part in (f"{first}:2", f"{second}:1", fingerprint(OTHER), fingerprint(KEY)):
        assert part in message
    remove = f"ssh-keygen -R vm -f {first} && ssh-keygen -R vm -f {second}"
    assert f"{remove} && echo 'vm ssh-ed25519 {TEXT}' >> {first}" in message
