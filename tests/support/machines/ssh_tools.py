"""Helpers of the SSH tests: a host seen from the network's laptop, and shorter timeouts."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import remote.hosts.ssh.connection
from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed
from remote.hosts.ssh.config import Destination
from remote.hosts.ssh.host import SshHost
from tests.support.hosts.local_fleet import running_in_thread as running_in_thread
from tests.support.hosts.local_fleet import wait_for as wait_for
from tests.support.machines.network import Network

PATIENCE_SEC = 60.0


@contextlib.contextmanager
def from_laptop(network: Network, name: str = "vm") -> Iterator[SshHost]:
    """Connect to a host from the laptop, in this thread."""
    destination = Destination(host=name, config_file=str(network.ssh_config))
    with network.laptop.network_of_this_thread(), SshHost(name="vm", destination=destination) as host:
        yield host


def run(host: SshHost, *argv: str, folder: str | None = None, **options: Any) -> Completed:
    options.setdefault("timeout_sec", PATIENCE_SEC)
    return host.run(Command(argv=argv, folder=folder), **options)


def shorten_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the keepalive settings: a dead link is detected after seconds of silence instead of half a minute.

    The kernel always answers keepalives in time; the other side's sshd may be slow on a busy machine.
    """
    kernel = dict(zip(remote.hosts.ssh.connection._TCP_OPTIONS, (1, 1, 2, 2000), strict=True))
    monkeypatch.setattr(remote.hosts.ssh.connection, "_TCP_OPTIONS", kernel)
    monkeypatch.setattr(remote.hosts.ssh.connection, "_KEEPALIVE_SEC", 0.5)
    monkeypatch.setattr(remote.hosts.ssh.connection, "_KEEPALIVE_TIMEOUT_SEC", 5.0)


def is_running_on_vm(network: Network, pattern: str) -> bool:
    """Return whether the command line of a process on the VM matches `pattern`."""
    return network.vm.run("pgrep", "-f", "--", pattern, check=False).returncode == 0
