"""Hashed names and fingerprints compared with ssh-keygen."""

import base64
import subprocess
from pathlib import Path

from remote.hosts.ssh.known_hosts import fingerprint, read_known_keys
from tests.support.machines.sshd import keygen


def test_hashed_names_are_those_that_ssh_keygen_writes(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    public_key = keygen(tmp_path / "key").with_name("key.pub").read_text().split()
    file.write_text(f"vm {public_key[0]} {public_key[1]}\n[vm]:2222 {public_key[0]} {public_key[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    for port in (22, 2222):
        assert [key.blob for key in read_known_keys([str(file)], "vm", port)] == [base64.b64decode(public_key[1])]
    assert read_known_keys([str(file)], "vm2", 22) == []


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path) -> None:
    key = keygen(tmp_path / "key")
    output = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True).stdout
    assert fingerprint(base64.b64decode(key.with_name("key.pub").read_text().split()[1])) == output.split()[1]
