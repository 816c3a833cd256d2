"""Messages of several threads on one SSH connection arrive in order, even if one thread is slow.

The sshd is real. The delay of an early message is simulated here; on a busy machine it occurs on its own.
"""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EOF

from remote.hosts.command import Command
from remote.hosts.ssh.host import SshHost
from tests.support.machines.ssh_client import SshClient
from tests.support.machines.sshd import Sshd


@pytest.fixture
def host(ssh_client: SshClient, tmp_path: Path) -> Iterator[SshHost]:
    with SshHost(
        name="vm", destination=ssh_client.destination(), workdir=str(tmp_path), python=(sys.executable,)
    ) as host:
        yield host


@pytest.mark.parametrize(("kind", "stdin"), [(MSG_CHANNEL_EOF, None), (MSG_CHANNEL_DATA, b"an unread line\n" * 5000)])
def test_a_slow_threads_message_does_not_arrive_after_the_close(
    host: SshHost, ssh_client: SshClient, monkeypatch: pytest.MonkeyPatch, kind: int, stdin: bytes | None
) -> None:
    send_now = paramiko.Transport._send_user_message  # type: ignore[attr-defined]

    def send_late(transport: paramiko.Transport, message: paramiko.Message) -> None:
        if message.asbytes()[0] == kind and threading.current_thread().name == "ssh-stdin":
            time.sleep(0.2)
        send_now(transport, message)

    monkeypatch.setattr(paramiko.Transport, "_send_user_message", send_late)
    before = ssh_client.sshd.logins()
    with ThreadPoolExecutor() as threads:
        other = threads.submit(host.run, Command(argv=("sh", "-c", "sleep 2; echo still here")), timeout_sec=30.0)
        for _ in range(3):
            assert host.run(Command(argv=("true",)), stdin=stdin, timeout_sec=30.0).exit_code == 0
        assert other.result().stdout == b"still here\n"
    assert ssh_client.sshd.logins() == before + 1


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[paramiko.Transport]:
    """List that grows by one with each key exchange of either side, including that of the login."""
    started, send = list[paramiko.Transport](), paramiko.Transport._send_kex_init  # type: ignore[attr-defined]

    def record_exchange(transport: paramiko.Transport) -> None:
        started.append(transport)
        send(transport)

    monkeypatch.setattr(paramiko.Transport, "_send_kex_init", record_exchange)
    return started


def test_only_the_server_starts_a_rekey(
    host: SshHost, monkeypatch: pytest.MonkeyPatch, exchanges: list[paramiko.Transport]
) -> None:
    monkeypatch.setattr("paramiko.packet.Packetizer.REKEY_BYTES", 1 << 16)
    content = b"x" * (1 << 20)
    assert host.run(Command(argv=("cat",)), stdin=content, timeout_sec=60.0).stdout == content
    assert len(exchanges) == 1


def test_commands_continue_while_the_server_rekeys(tmp_path: Path, exchanges: list[paramiko.Transport]) -> None:
    with Sshd(tmp_path / "sshd", options=("RekeyLimit 512K",)) as sshd:
        destination = SshClient(tmp_path, sshd).destination()
        with (
            SshHost(name="vm", destination=destination, workdir=str(tmp_path)) as host,
            ThreadPoolExecutor() as threads,
        ):
            content = b"x" * 200_000
            commands = [
                threads.submit(host.run, Command(argv=("cat",)), stdin=content, timeout_sec=60.0) for _ in range(20)
            ]
            assert {command.result().stdout for command in commands} == {content}
        assert sshd.logins() == 1
    assert len(exchanges) > 5
