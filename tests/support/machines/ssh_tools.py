"""What the SSH tests share: a host seen from the network's laptop, and patience cut to a test's size."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import remote.ssh.connection
from remote.hosts.command import Command
from remote.hosts.host import Completed
from remote.ssh.config import Destination
from remote.ssh.host import SshHost
from tests.support.hosts.local_fleet import meanwhile as meanwhile
from tests.support.hosts.local_fleet import wait_for as wait_for
from tests.support.machines.network import Network

PATIENCE_SEC = 60.0


@contextlib.contextmanager
def from_laptop(network: Network, name: str = "vm", **choices: Any) -> Iterator[SshHost]:
    """The host as the laptop reaches it, for this thread."""
    destination = Destination(host=name, config_file=str(network.ssh_config), **choices)
    with network.laptop.network_of_this_thread(), SshHost(name="vm", destination=destination) as host:
        yield host


def run(host: SshHost, *argv: str, **options: Any) -> Completed:
    options.setdefault("timeout_sec", PATIENCE_SEC)
    return host.run(Command(argv=argv), **options)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same means, sooner: a dead link is given up after seconds of silence instead of half a minute. The kernel
    answers in time on any machine; for the pulse the other side's sshd has to get its turn on a busy one.
    """
    kernel = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 2000}
    monkeypatch.setattr(remote.ssh.connection, "_KERNEL", kernel)
    monkeypatch.setattr(remote.ssh.connection, "_PULSE_SEC", 0.5)
    monkeypatch.setattr(remote.ssh.connection, "_PULSE_DEADLINE_SEC", 5.0)


def vm_runs(network: Network, pattern: str) -> bool:
    """Does a process of the VM have this in its command line?"""
    return network.vm.run("pgrep", "-f", "--", pattern, check=False).returncode == 0
