"""Keys that a host may have, as ssh-keygen finds them in known_hosts files, their fingerprints, and refused logins."""

import base64
import subprocess
from pathlib import Path

import pytest

from remote.hosts.command import Command
from remote.hosts.host_protocol import HostError, InvalidAddress, LoginRefused
from remote.hosts.ssh.auth import fingerprint, read_known_keys
from remote.hosts.ssh.config import Destination
from remote.hosts.ssh.host import SshHost
from tests.support.machines.sshd import Sshd, keygen, running_agent

OTHER = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"o" * 32).decode()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("key") / "key")


@pytest.mark.parametrize(
    ("lines", "port", "expected"),
    [
        ("vm {key} a comment", 22, [(1, False)]),
        ("vm {key}", 2222, [(1, False)]),
        ("[vm]:2222 {key}", 22, []),
        ("vm {other}\n[vm]:2222 {key}", 2222, [(2, False)]),  # a line with the port takes precedence
        ("other,v? {key}\n*,!vm {other}", 22, [(1, False)]),
        ("# mine\nvm {key}\n@revoked * {key}", 22, [(2, False), (3, True)]),
        ("@cert-authority vm {key}", 22, []),
        ("vm ssh-ed25519 not*base64\nvm ssh-ed25519\nvm\n\n|1|x|y k AAAA", 22, []),
    ],
)
def test_only_valid_lines_about_the_host_list_a_key(
    tmp_path: Path, key: Path, lines: str, port: int, expected: list[tuple[int, bool]]
) -> None:
    kind, blob = key.with_name("key.pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(lines.format(key=f"{kind} {blob}", other=f"ssh-ed25519 {OTHER}") + "\n")
    for _ in range(2):
        keys = read_known_keys([str(file), "/no/such/file"], "VM", port)
        assert [(known.line, known.revoked) for known in keys] == expected
        assert {known.blob for known in keys} <= {base64.b64decode(blob)}
        if "|" in lines or "*" in lines or "?" in lines or "@" in lines:  # ssh-keygen hashes none of them
            return
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)


def test_an_unreadable_known_hosts_file_is_an_invalid_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    failing = tmp_path / "bin" / "ssh-keygen"  # root may read every file
    failing.write_text("#!/bin/sh\necho 'open: Permission denied' >&2\nexit 255\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{failing.parent}:/usr/bin:/bin")
    (tmp_path / "known_hosts").touch()
    with pytest.raises(InvalidAddress, match=rf"{tmp_path}/known_hosts: .*Permission denied; "):
        read_known_keys([str(tmp_path / "known_hosts")], "vm", 22)


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(key: Path) -> None:
    output = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True).stdout
    assert fingerprint(base64.b64decode(key.with_name("key.pub").read_text().split()[1])) == output.split()[1]


@pytest.mark.parametrize(
    ("options", "lines", "kind", "token"),
    [
        ((), "", LoginRefused, "after 5 refused keys of 8 offered; .*IdentitiesOnly yes"),
        (("PubkeyAuthentication no", "PasswordAuthentication yes"), "", LoginRefused, "only password; .*Pubkey"),
        ((), " ProxyCommand /no/such %h\n", InvalidAddress, "ProxyCommand /no/such: "),
    ],
)
def test_a_login_that_cannot_succeed_says_what_to_type(
    tmp_path: Path, options: tuple[str, ...], lines: str, kind: type[HostError], token: str
) -> None:
    keys = [keygen(tmp_path / f"key{number}") for number in range(8)]
    with Sshd(tmp_path / "sshd", options=options) as sshd, running_agent(tmp_path / "agent", *keys) as agent:
        sshd.authorize(keys[-1])
        (tmp_path / "known_hosts").write_text(sshd.known_hosts_line("127.0.0.1"))
        (tmp_path / "config").write_text(
            f"Host vm\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityAgent {agent}\n{lines}"
            f" UserKnownHostsFile {tmp_path}/known_hosts\n IdentityFile {tmp_path}/none\n"
        )
        destination = Destination(host="vm", config_file=str(tmp_path / "config"))
        with SshHost(name="vm", destination=destination) as host, pytest.raises(kind, match=rf"^vm \(.*{token}"):
            host.run(Command(argv=("true",)), timeout_sec=60.0)
