"""Local hosts behind SSH: folders and processes of this machine, through a real sshd.

Not covered here but by network.py: another machine, another user, a cable.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from remote.hosts.ssh.config import Destination
from remote.hosts.ssh.host import SshHost
from tests.support.hosts.local_fleet import LocalFleet
from tests.support.machines.sshd import Sshd, keygen


class SshClient:
    """A running sshd on loopback, and the configuration of a client that may log in as the current user."""

    def __init__(self, folder: Path, sshd: Sshd) -> None:
        self.sshd, self.config, self.known_hosts = sshd, folder / "ssh_config", folder / "known_hosts"
        key = keygen(folder / "key")
        sshd.authorize(key)
        self.known_hosts.write_text(sshd.known_hosts_line("127.0.0.1"))
        self.config.write_text(
            f"Host vm\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {key}\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {self.known_hosts}\n"
        )

    def destination(self) -> Destination:
        return Destination(host="vm", config_file=str(self.config))


class SshFleet(LocalFleet):
    """Fleet of hosts with one SSH connection each, like `inv`, which opens one per task."""

    def __init__(self, folder: Path, ssh_client: SshClient) -> None:
        super().__init__(folder)
        self._client, self._hosts = ssh_client, list[SshHost]()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            for host in self._hosts:
                host.close()

    def host(self, name: str = "worker-1", workdir: Path | None = None) -> SshHost:  # type: ignore[override]
        workdir = self.folder / "hosts" / name if workdir is None else workdir
        known = {(host.name, host.workdir): host for host in self._hosts}
        if (name, str(workdir)) in known:
            return known[name, str(workdir)]
        host = SshHost(
            name=name, destination=self._client.destination(), workdir=str(workdir), python=(sys.executable,)
        )
        self._hosts.append(host)
        return host


LOCAL_AND_SSH = pytest.mark.parametrize("local", ["local", "ssh"], indirect=True)


@pytest.fixture(name="local")
def local_or_ssh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalFleet]:
    """Run each test of the importing file on local hosts, those LOCAL_AND_SSH over SSH too.

    Leftover processes fail the test.
    """
    is_ssh = getattr(request, "param", "local") == "ssh"
    with SshFleet(tmp_path, request.getfixturevalue("ssh_client")) if is_ssh else LocalFleet(tmp_path) as local:
        yield local
