"""Resolution of a destination by `ssh -G`, and the error for each kind of connection failure."""

import errno
import os
import re
import socket
import socketserver
from pathlib import Path

import paramiko
import pytest

from remote.hosts.command import Command
from remote.hosts.host_protocol import HostError, HostUnreachable, InvalidAddress
from remote.hosts.ssh.config import Destination, Hop, home_folder, parse_hop, resolve_route
from remote.hosts.ssh.connection import Connection, _to_host_error
from remote.hosts.ssh.host import SshHost
from tests.support.machines.http_stubs import StubServer


def resolve(tmp_path: Path, config: str, host: str = "vm") -> list[str]:
    user = tmp_path / "user config"
    user.write_text(config)
    return [str(hop) for hop in resolve_route(Destination(host=host, config_file=str(user)))]


def test_the_users_own_configuration_applies(tmp_path: Path) -> None:
    config = "Host vm\n HostName 10.0.0.1\n User me\n Port 2222\n StrictHostKeyChecking no\n"
    assert resolve(tmp_path, config) == ["vm (me@10.0.0.1 port 2222)"]
    assert resolve(tmp_path, config, "ssh://you@vm:22") == ["vm (you@10.0.0.1 port 22)"]
    assert resolve(tmp_path, config, "you@vm") == ["vm (you@10.0.0.1 port 2222)"]


@pytest.mark.parametrize(
    ("jumps", "hops"),
    [
        ("none", []),
        ("a", ["a (me@a.example port 22)"]),
        ("x@a:2200", ["a (x@a.example port 2200)"]),
        ("a,b", ["a (me@a.example port 22)", "b (me@b port 22)"]),
        ("ssh://x@b:22", ["b (x@b port 22)"]),
        ("[fe80::1]:23", ["fe80::1 (me@fe80::1 port 23)"]),
        ("c", ["a (me@a.example port 22)", "c (me@c port 22)"]),
        ("b,c", ["b (me@b port 22)", "c (me@c port 22)"]),  # only the first jump host's own ProxyJump counts
    ],
)
def test_jump_hosts_are_in_the_order_of_the_route(tmp_path: Path, jumps: str, hops: list[str]) -> None:
    config = f"Host vm\n ProxyJump {jumps}\nHost c\n ProxyJump a\nHost a\n HostName a.example\nHost *\n User me\n"
    assert resolve(tmp_path, config) == [*hops, "vm (me@vm port 22)"]


def test_a_configuration_in_another_encoding_is_read(tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.write_bytes(b"IdentityFile /keys/schl\xfcssel\n")
    (hop,) = resolve_route(Destination(host="vm", config_file=str(user)))
    assert [os.fsencode(file) for file in hop.identity_files] == [b"/keys/schl\xfcssel"]


@pytest.mark.parametrize(
    ("config", "token"),
    [("Host vm\n ProxyJump a\nHost a\n ProxyJump vm\n", "ProxyJump"), ("Nonsense yes\n", "user config.*nonsense")],
)
def test_an_invalid_configuration_is_refused(tmp_path: Path, config: str, token: str) -> None:
    with pytest.raises(InvalidAddress, match=token):
        resolve(tmp_path, config)


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a\n"])
def test_a_host_that_looks_like_an_option_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(host))):
        Destination(host=host)


def test_tokens_and_the_home_are_filled_in() -> None:
    output = (
        "hostname 10.0.0.1\nuser me\nport 23\nidentityfile ~/.ssh/%h-%r\nidentityfile %d/k%%\nidentityagent none\n"
        "proxycommand nc %h %p %n\nuserknownhostsfile /a ~/b\nglobalknownhostsfile /c\nconnecttimeout 7\n"
    )
    hop = parse_hop("vm", output)
    assert hop.identity_files == (f"{home_folder()}/.ssh/10.0.0.1-me", f"{home_folder()}/k%")
    assert (hop.proxy_command, hop.connect_timeout_sec, hop.identity_agent) == ("nc 10.0.0.1 23 vm", 7.0, "none")
    assert hop.known_hosts_files == ("/a", f"{home_folder()}/b", "/c")


@pytest.mark.parametrize(
    ("error", "kind", "token"),
    [
        (socket.gaierror(socket.EAI_NONAME, "x"), InvalidAddress, "HostName"),
        (socket.gaierror(socket.EAI_AGAIN, "x"), HostUnreachable, "network"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), HostUnreachable, "port 23;"),
        (TimeoutError(), HostUnreachable, "15 s"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), HostUnreachable, "Network is unreachable"),
        (EOFError(), HostUnreachable, "closed"),
        (paramiko.ChannelException(1, "no"), InvalidAddress, "AllowTcpForwarding"),
        (paramiko.ChannelException(2, "no route"), HostUnreachable, "connect to it: no route"),
        (paramiko.SSHException("Error reading SSH protocol banner"), HostUnreachable, "no SSH banner"),
        (paramiko.SSHException('Indecipherable protocol version "x"'), InvalidAddress, "correct the port"),
        (paramiko.ssh_exception.IncompatiblePeer("no kex"), InvalidAddress, "no kex"),
    ],
)
def test_every_connection_error_has_its_own_class_and_message(
    error: Exception, kind: type[HostError], token: str
) -> None:
    host_error = _to_host_error(Hop(name="vm", hostname="10.0.0.1", user="me", port=23), error)
    assert type(host_error) is kind
    assert str(host_error).startswith("vm (me@10.0.0.1 port 23): ")
    assert token in str(host_error)


class Garbled(socketserver.BaseRequestHandler):
    """A server that sends sshd's banner, but a list of algorithms that is not text."""

    def handle(self) -> None:
        packet = b"\x09\x14" + bytes(16) + b"\0\0\0\2\xff\xfe" * 10 + bytes(5 + 9)  # 9 bytes of padding
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + len(packet).to_bytes(4, "big") + packet)
        self.request.recv(1 << 16)


def test_an_invalid_name_or_reply_is_a_host_error() -> None:
    with pytest.raises(InvalidAddress, match="HostName"):
        Connection((Hop(name="vm", hostname="a..b", user="me", port=22),))
    with StubServer(Garbled) as server, pytest.raises(HostUnreachable, match="'utf-8' codec"):
        Connection((Hop(name="vm", hostname="127.0.0.1", user="me", port=server.server_address[1]),))


def test_an_environment_that_no_shell_can_export_is_refused_before_connecting() -> None:
    host = SshHost(name="vm", destination=Destination(host="vm"))
    with pytest.raises(ValueError, match="'a-b'"):
        host.run(Command(argv=("true",), environment={"a-b": "c"}), timeout_sec=1.0)
