"""Where a destination is, as `ssh -G` says it; and what each way of not getting there is called."""

import errno
import os
import socket
import socketserver
from pathlib import Path

import paramiko
import pytest

from remote.hosts.command import Command
from remote.hosts.host import HostError, HostUnreachable, InvalidAddress
from remote.ssh.config import Destination, Hop, home, parse, route, strict_config
from remote.ssh.connection import Connection, _explained
from remote.ssh.host import SshHost
from tests.support.machines.http_stubs import Serving


def way(tmp_path: Path, config: str, host: str = "vm", **choices: object) -> list[str]:
    user, strict = tmp_path / "user config", tmp_path / "strict"
    user.write_text(config)
    strict.write_text(strict_config(str(user)))
    return [str(hop) for hop in route(Destination(host=host, **choices), strict)]  # type: ignore[arg-type]


def test_the_users_own_configuration_decides_all_but_the_strictness(tmp_path: Path) -> None:
    config = "Host vm\n HostName 10.0.0.1\n User me\n Port 2222\n StrictHostKeyChecking no\n"
    assert way(tmp_path, config) == ["vm (me@10.0.0.1 port 2222)"]
    assert way(tmp_path, config, user="you", port=22) == ["vm (you@10.0.0.1 port 22)"]


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
        ("b,c", ["b (me@b port 22)", "c (me@c port 22)"]),  # of several, only the first one's own way counts
    ],
)
def test_jump_hosts_stand_in_the_order_they_are_gone_through(tmp_path: Path, jumps: str, hops: list[str]) -> None:
    config = f"Host vm\n ProxyJump {jumps}\nHost c\n ProxyJump a\nHost a\n HostName a.example\nHost *\n User me\n"
    assert way(tmp_path, config) == [*hops, "vm (me@vm port 22)"]


def test_a_configuration_in_another_encoding_is_read(tmp_path: Path) -> None:
    user, strict = tmp_path / "user", tmp_path / "strict"
    user.write_bytes(b"IdentityFile /keys/schl\xfcssel\n")
    strict.write_text(strict_config(str(user)))
    assert [os.fsencode(file) for file in route(Destination(host="vm"), strict)[0].identity_files] == [
        b"/keys/schl\xfcssel"
    ]


def test_a_home_that_nobody_knows_stays_as_it_was_typed() -> None:
    assert Destination(host="vm", identity="~.ssh/id").options == ("-i", "~.ssh/id")


def test_a_user_without_a_name_is_told_why_there_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(InvalidAddress, match="list of users has no user 2147483641"):
        strict_config(None)


def test_a_circle_of_jump_hosts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidAddress, match="leads in a circle"):
        way(tmp_path, "Host vm\n ProxyJump a\nHost a\n ProxyJump vm\n")


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a\n"])
def test_what_could_be_taken_for_an_option_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="is no host"):
        Destination(host=host)


def test_tokens_and_the_home_are_filled_in() -> None:
    said = (
        "hostname 10.0.0.1\nuser me\nport 23\nidentityfile ~/.ssh/%h-%r\nidentityfile %d/k%%\nidentityagent none\n"
        "proxycommand nc %h %p %n\nuserknownhostsfile /a ~/b\nglobalknownhostsfile /c\nconnecttimeout 7\n"
    )
    hop = parse("vm", said)
    assert hop.identity_files == (f"{home()}/.ssh/10.0.0.1-me", f"{home()}/k%")
    assert (hop.proxy_command, hop.connect_timeout_sec, hop.identity_agent) == ("nc 10.0.0.1 23 vm", 7.0, "none")
    assert hop.known_hosts_files == ("/a", f"{home()}/b", "/c")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (socket.gaierror(socket.EAI_NONAME, "x"), InvalidAddress, "no machine of that name"),
        (socket.gaierror(socket.EAI_AGAIN, "x"), HostUnreachable, "cannot be looked up now"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), HostUnreachable, "nothing listens on port 23"),
        (TimeoutError(), HostUnreachable, "no answer within 15 s"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), HostUnreachable, "Network is unreachable"),
        (EOFError(), HostUnreachable, "EOFError"),
        (paramiko.ChannelException(1, "no"), InvalidAddress, "forbids connections onwards"),
        (paramiko.ChannelException(2, "no route"), HostUnreachable, "cannot connect to it: no route"),
        (paramiko.SSHException("Error reading SSH protocol banner"), HostUnreachable, "no SSH greeting"),
        (paramiko.SSHException('Indecipherable protocol version "x"'), InvalidAddress, "does not speak SSH"),
        (paramiko.ssh_exception.IncompatiblePeer("no kex"), InvalidAddress, "no common cryptography"),
    ],
)
def test_every_way_of_not_getting_there_has_its_own_words(error: Exception, kind: type[HostError], words: str) -> None:
    explained = _explained(Hop(name="vm", hostname="10.0.0.1", user="me", port=23), error)
    assert type(explained) is kind
    assert str(explained).startswith("vm (me@10.0.0.1 port 23): ")
    assert words in str(explained)


class Garbled(socketserver.BaseRequestHandler):
    """Greets as sshd does; its list of algorithms is not text."""

    def handle(self) -> None:
        packet = b"\x09\x14" + bytes(16) + b"\0\0\0\2\xff\xfe" * 10 + bytes(5 + 9)  # 9 bytes of padding
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + len(packet).to_bytes(4, "big") + packet)
        self.request.recv(1 << 16)


def test_what_cannot_be_looked_up_or_read_is_one_line() -> None:
    with pytest.raises(InvalidAddress, match="no machine of that name"):
        Connection((Hop(name="vm", hostname="a..b", user="me", port=22),))
    with Serving(Garbled) as server, pytest.raises(HostUnreachable, match="broke while it was made: 'utf-8' codec"):
        Connection((Hop(name="vm", hostname="127.0.0.1", user="me", port=server.server_address[1]),))


def test_an_environment_that_no_shell_can_pass_on_is_refused_before_anything_is_opened() -> None:
    host = SshHost(name="vm", destination=Destination(host="vm"))
    with pytest.raises(ValueError, match="a shell cannot pass on"):
        host.run(Command(argv=("true",), environment={"a-b": "c"}), timeout_sec=1.0)
    with pytest.raises(ValueError, match="only argv can be dialled"):
        host.dial(Command(argv=("true",), environment={"A": "c"}))
