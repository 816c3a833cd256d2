"""Which keys a host may show, read from known_hosts files as OpenSSH reads them, and what is said of the others."""

import base64
from pathlib import Path

import pytest

from remote.hosts.host import InvalidAddress
from remote.ssh import connection
from remote.ssh.config import Hop
from remote.ssh.known_hosts import complaint, fingerprint, known_keys

KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 36, b"\0\0\0\x0bssh-ed25519" + b"o" * 36
TEXT = base64.b64encode(KEY).decode()


def found(tmp_path: Path, content: str, host: str = "vm", port: int = 22) -> list[bytes]:
    (tmp_path / "known_hosts").write_text(content)
    return [key.blob for key in known_keys([str(tmp_path / "known_hosts"), "/no/such/file"], host, port)]


@pytest.mark.parametrize(
    ("names", "host", "port", "known"),
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
    tmp_path: Path, names: str, host: str, port: int, known: bool
) -> None:
    assert found(tmp_path, f"{names} ssh-ed25519 {TEXT} a comment\n", host, port) == ([KEY] if known else [])


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
def test_a_line_that_lists_no_key_accepts_none(tmp_path: Path, line: str) -> None:
    assert found(tmp_path, f"{line}\n") == []


def test_a_line_for_the_port_goes_before_one_without(tmp_path: Path) -> None:
    both = f"vm ssh-ed25519 {base64.b64encode(OTHER).decode()}\n[vm]:2222 ssh-ed25519 {TEXT}\n"
    assert found(tmp_path, both, port=2222) == [KEY]


def test_known_hosts_that_cannot_be_read_are_no_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/home/me/.ssh/known_hosts")

    monkeypatch.setattr(connection, "known_keys", shut)
    with pytest.raises(InvalidAddress, match=r"^/home/me/\.ssh/known_hosts: cannot be read: Permission denied; "):
        connection.StrictHostKeyPolicy(Hop(name="vm", hostname="vm", user="me", port=22))


def test_the_words_for_an_unknown_key_end_with_the_command_that_accepts_this_one(tmp_path: Path) -> None:
    file = f"{tmp_path}/my hosts"
    said = complaint([], [file], "VM", 2222, "ssh-ed25519", KEY)
    assert said.startswith(f"its host key is unknown: ssh-ed25519 {fingerprint(KEY)}; ")
    assert said.endswith(f"accept it: echo '[vm]:2222 ssh-ed25519 {TEXT}' >> '{file}'")


def test_the_words_for_a_changed_key_name_every_place_of_the_old_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(f"# mine\nvm ssh-ed25519 {base64.b64encode(OTHER).decode()}\n")
    two.write_text(f"vm ssh-ed25519 {base64.b64encode(OTHER).decode()}\n")
    files = [str(one), str(two)]
    said = complaint(known_keys(files, "vm", 22), files, "vm", 22, "ssh-ed25519", KEY)
    for part in (f"{one}:2", f"{two}:1", fingerprint(OTHER), fingerprint(KEY)):
        assert part in said
    assert f"ssh-keygen -R vm -f {one} && ssh-keygen -R vm -f {two} && echo 'vm ssh-ed25519 {TEXT}' >> {one}" in said
