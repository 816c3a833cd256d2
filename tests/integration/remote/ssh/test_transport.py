"""What several threads say on one SSH connection arrives in order, however slow one of them is to say it.

The sshd is real. That it hears late what was to be said early is arranged here; a busy machine does it by itself.
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
from remote.ssh.host import SshHost
from tests.support.machines.ssh_client import SshClient
from tests.support.machines.sshd import Sshd


@pytest.fixture
def host(ssh_client: SshClient, tmp_path: Path) -> Iterator[SshHost]:
    with SshHost(
        name="vm", destination=ssh_client.destination(), workdir=str(tmp_path), python=(sys.executable,)
    ) as host:
        yield host


@pytest.mark.parametrize(
    ("kind", "said"), [(MSG_CHANNEL_EOF, None), (MSG_CHANNEL_DATA, b"a line nobody reads\n" * 5000)]
)
def test_what_a_slow_thread_says_does_not_arrive_after_the_close(
    host: SshHost, ssh_client: SshClient, monkeypatch: pytest.MonkeyPatch, kind: int, said: bytes | None
) -> None:
    at_once = paramiko.Transport._send_user_message  # type: ignore[attr-defined]

    def late(transport: paramiko.Transport, message: paramiko.Message) -> None:
        if message.asbytes()[0] == kind and threading.current_thread().name == "ssh-stdin":
            time.sleep(0.2)
        at_once(transport, message)

    monkeypatch.setattr(paramiko.Transport, "_send_user_message", late)
    before = ssh_client.sshd.logins()
    with ThreadPoolExecutor() as threads:
        other = threads.submit(host.run, Command(argv=("sh", "-c", "sleep 2; echo still here")), timeout_sec=30.0)
        for _ in range(3):
            assert host.run(Command(argv=("true",)), stdin=said, timeout_sec=30.0).exit_code == 0
        assert other.result().stdout == b"still here\n"
    assert ssh_client.sshd.logins() == before + 1


def test_an_input_larger_than_any_window_arrives_whole(host: SshHost) -> None:
    content = bytes(range(256)) * (5 << 12)  # 5 MiB; OpenSSH takes 2 MiB before it must say that it read some
    done = host.run(Command(argv=("sh", "-c", "sleep 0.3; cat")), stdin=content, timeout_sec=60.0)
    assert done.stdout == content


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[paramiko.Transport]:
    """Grows by one with each exchange of keys, the one of the login included, whoever begins it."""
    begun, send = list[paramiko.Transport](), paramiko.Transport._send_kex_init  # type: ignore[attr-defined]

    def note(transport: paramiko.Transport) -> None:
        begun.append(transport)
        send(transport)

    monkeypatch.setattr(paramiko.Transport, "_send_kex_init", note)
    return begun


def test_new_keys_are_left_to_the_server_to_begin(
    host: SshHost, monkeypatch: pytest.MonkeyPatch, exchanges: list[paramiko.Transport]
) -> None:
    monkeypatch.setattr("paramiko.packet.Packetizer.REKEY_BYTES", 1 << 16)
    content = b"x" * (1 << 20)
    assert host.run(Command(argv=("cat",)), stdin=content, timeout_sec=60.0).stdout == content
    assert len(exchanges) == 1


def test_commands_go_on_while_the_server_renews_the_keys(tmp_path: Path, exchanges: list[paramiko.Transport]) -> None:
    with Sshd(tmp_path / "sshd", options=("RekeyLimit 512K",)) as sshd:
        destination = SshClient(tmp_path, sshd).destination()
        with (
            SshHost(name="vm", destination=destination, workdir=str(tmp_path)) as host,
            ThreadPoolExecutor() as threads,
        ):
            content = b"x" * 200_000
            ended = [
                threads.submit(host.run, Command(argv=("cat",)), stdin=content, timeout_sec=60.0) for _ in range(20)
            ]
            assert {one.result().stdout for one in ended} == {content}
        assert sshd.logins() == 1
    assert len(exchanges) > 5
