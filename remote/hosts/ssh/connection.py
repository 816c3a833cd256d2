"""Strict SSH connections: one for each hop, each through the one before.

Fabric chains the connections. Its lax defaults are replaced here: host keys come only from known_hosts and are checked
before any user name or key of ours is sent, keys are offered in the order of the user's configuration, every phase has
a deadline, and a dead link at any hop is noticed within a minute.

Not covered: passwords, Kerberos, certificates (for hosts see `remote.hosts.ssh.auth`; users need plain keys).
"""

import contextlib
import logging
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.common import MSG_CHANNEL_CLOSE

from remote.hosts.host_protocol import HostError, HostKeyRefused, HostUnreachable, InvalidAddress
from remote.hosts.local_program import end_process_group
from remote.hosts.ssh.auth import KeyAuthStrategy, StrictHostKeyPolicy
from remote.hosts.ssh.config import Hop

_HANDSHAKE_TIMEOUT_SEC = 30.0
_NO_SESSION_FREE = (2, 4)  # RFC 4254, 5.1: connect failed (OpenSSH's reply), resource shortage
_KEEPALIVE_SEC = 10.0
_KEEPALIVE_TIMEOUT_SEC = 30.0
# Measured on a cut link: without these a connection hangs indefinitely, with Paramiko's own keepalive for 955 s.
_TCP_OPTIONS = {
    socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4, socket.TCP_USER_TIMEOUT: 30_000,
}  # fmt: skip
_WINDOW_POLL_SEC = 1.0
_CLIENT_REKEY_BYTES = 1 << 37  # disables client rekeying: sshd rekeys AES at half of this (RFC 4344, 3.2)
_REKEY_TIMEOUT_SEC = 120.0  # longer than _KEEPALIVE_TIMEOUT_SEC

# Paramiko also logs the errors that it raises; without a handler Python would print the tracebacks on the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection:
    """An open connection to the last hop. Sessions are opened on `transport`; `close` ends every hop."""

    def __init__(self, hops: tuple[Hop, ...]) -> None:
        """Connect and log in at every hop. Raises HostKeyRefused, LoginRefused, InvalidAddress, HostUnreachable."""
        self._exit_stack = contextlib.ExitStack()
        try:
            previous: fabric.Connection | None = None
            for hop in hops:
                previous = self._open_hop(hop, previous)
            assert previous is not None and isinstance(previous.transport, PatchedTransport)  # noqa: S101, PT018
            self.transport = previous.transport
        except BaseException:
            self._exit_stack.close()
            raise
        self._stopped, self._session_lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._send_keepalives, name="ssh-keepalive", daemon=True).start()

    def is_open(self) -> bool:
        return self.transport.is_active()

    def open_session(self, timeout_sec: float = _HANDSHAKE_TIMEOUT_SEC) -> paramiko.Channel:
        """Open a session, once the server has one free: it allows ten (MaxSessions). Raises Paramiko's errors."""
        deadline = time.monotonic() + timeout_sec
        while True:
            try:
                with self._session_lock:  # one at a time: Paramiko stores only one reply
                    return self.transport.open_session(timeout=timeout_sec)
            except paramiko.ChannelException as error:
                if error.code not in _NO_SESSION_FREE or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def dial(self, name: str, line: str) -> paramiko.Channel:
        """Start a command line in a new session and return its streams. Raises HostUnreachable for the host `name`."""
        try:
            channel = self.open_session()
            channel.exec_command(line)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(f"{name}: the connection is lost: {error or type(error).__name__}") from error
        return channel

    def close(self) -> None:
        self._stopped.set()
        self.transport.close()  # first: it releases the threads that wait for an answer
        self._exit_stack.close()

    def _open_hop(self, hop: Hop, previous: fabric.Connection | None) -> fabric.Connection:
        keys = KeyAuthStrategy(hop)
        kwargs: dict[str, Any] = {
            "auth_strategy": keys,
            "banner_timeout": _HANDSHAKE_TIMEOUT_SEC,
            "auth_timeout": _HANDSHAKE_TIMEOUT_SEC,
            "channel_timeout": _HANDSHAKE_TIMEOUT_SEC,
            "transport_factory": PatchedTransport,
        }
        try:
            if previous is None:
                kwargs["sock"] = self._exit_stack.enter_context(_first_socket(hop))
            config = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())  # no fabric.yaml, no second ssh config
            connection = fabric.Connection(
                hop.hostname, user=hop.user, port=hop.port, config=config, gateway=previous, connect_kwargs=kwargs
            )
            policy = StrictHostKeyPolicy(hop)
            policy.install(connection.client)
            self._exit_stack.callback(connection.close)
            connection.open()
        except paramiko.BadHostKeyException as error:
            raise HostKeyRefused(policy.refusal_reason(error.key)) from error
        except AuthFailure as error:
            raise keys.login_error(error) from error
        # ValueError: the server sent invalid text or an invalid key.
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            raise _to_host_error(hop, error) from error
        finally:
            keys.close()
        return connection

    def _send_keepalives(self) -> None:
        """Send the last hop a keepalive every few seconds; close the connection if no reply comes in time.

        The kernel watches only the first hop's socket: a bastion's link to the machine behind it can die unnoticed.
        """
        while not self._stopped.wait(_KEEPALIVE_SEC) and self.transport.is_active():
            alarm = threading.Timer(_KEEPALIVE_TIMEOUT_SEC, self.transport.close)
            alarm.daemon = True
            alarm.start()
            try:
                self.transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return  # users of the connection see that it is closed
            finally:
                alarm.cancel()


# --- the first hop's socket -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _first_socket(hop: Hop) -> Iterator[socket.socket]:
    if hop.proxy_command is not None:
        program = hop.proxy_command.split()[0]
        if not set(program) & set("$~`\"'\\") and shutil.which(program) is None:
            raise InvalidAddress(
                f"{hop}: ProxyCommand {program}: not found on this machine",
                remedy="install it, or correct ProxyCommand in the ssh configuration",
            )
        with _proxy_socket(hop.proxy_command) as sock:
            yield sock
        return
    with socket.create_connection((hop.hostname, hop.port), hop.connect_timeout_sec) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # measured: 12 ms a command instead of 44
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _TCP_OPTIONS.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        yield sock


@contextlib.contextmanager
def _proxy_socket(command: str) -> Iterator[socket.socket]:
    """Connect a ProxyCommand's standard streams to a real socket, which Paramiko's own wrapper is not."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                ("/bin/sh", "-c", f"exec {command}"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        try:
            yield ours
        finally:
            end_process_group(process)


def _to_host_error(hop: Hop, error: Exception) -> HostError:
    message, port = getattr(error, "text", "") or str(error) or "closed by the other side", hop.port
    is_invalid_name = "idna" in message and isinstance(error, UnicodeError)  # an empty label, or one over 63 characters
    is_offline = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
    is_unknown = is_invalid_name or (isinstance(error, socket.gaierror) and not is_offline)
    is_behind_jump = isinstance(error, paramiko.ChannelException)
    is_forbidden_jump = isinstance(error, paramiko.ChannelException) and error.code == 1
    is_other_protocol = "Indecipherable protocol" in message or "Invalid packet" in message
    rows: tuple[tuple[bool, type[HostError], str, str], ...] = (
        (is_offline, HostUnreachable, f"its name cannot be looked up now: {message}", "check this machine's network"),
        (is_unknown, InvalidAddress, "unknown host name", "correct it, or set HostName in the ssh configuration"),
        (isinstance(error, ConnectionRefusedError), HostUnreachable, f"nothing listens on port {port}",
         "check that it is up and that this is the port of its sshd"),
        (isinstance(error, TimeoutError), HostUnreachable, f"no answer within {hop.connect_timeout_sec:g} s",
         f"check that it is up and that firewalls and security lists allow port {port}"),
        (is_forbidden_jump, InvalidAddress, "the jump host before it forbids forwarding (AllowTcpForwarding)", ""),
        (is_behind_jump, HostUnreachable, f"the jump host before it cannot connect to it: {message}", ""),
        (isinstance(error, paramiko.ssh_exception.IncompatiblePeer), InvalidAddress,
         f"no common cryptography: {message}", "its sshd is too old"),
        (is_other_protocol, InvalidAddress, f"the server on port {port} does not speak SSH", "correct the port"),
        ("protocol banner" in message, HostUnreachable, "no SSH banner",
         f"check that {port} is the port of its sshd and that it is not overloaded"),
        (True, HostUnreachable, f"the connection failed: {message}", ""),
    )  # fmt: skip
    return next(kind(f"{hop}: {problem}", remedy=remedy) for applies, kind, problem, remedy in rows if applies)


# --- messages in order ------------------------------------------------------------------------------------------------


class PatchedTransport(paramiko.Transport):
    """Paramiko's transport, with methods whose messages keep their order on a channel.

    Threads that share a channel must write to it only with these methods, which raise Paramiko's errors.

    Paramiko creates a channel's message under a lock and sends it after releasing the lock. So one thread's end of
    input can be sent after the close from Paramiko's own thread (paramiko issues 1115, 1705). OpenSSH then ends the
    whole connection with every command on it ("ieof packet referred to nonexistent channel"); if it has given the
    channel's number to a new session, the message reaches another command. Measured on a busy machine, four threads
    with five commands each: 10 of 150 connections lost; none of 150 since.

    Only the server starts a rekey (sshd's RekeyLimit). If Paramiko starts one while its own thread replies to a close,
    that thread waits for keys that only it could receive: observed with four threads and a rekey after each MiB, where
    the connection was lost after 30 s.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._send_lock = threading.Lock()  # held from creating a message until it is sent
        super().__init__(*args, **options)
        self.packetizer.REKEY_BYTES = _CLIENT_REKEY_BYTES
        self.clear_to_send_timeout = _REKEY_TIMEOUT_SEC
        handlers: dict[int, Callable[..., None]] = dict(paramiko.Transport._channel_handler_table)  # type: ignore[attr-defined]
        self._handle_close = handlers[MSG_CHANNEL_CLOSE]
        self._channel_handler_table = {**handlers, MSG_CHANNEL_CLOSE: self._handle_close_in_order}

    def write(self, channel: paramiko.Channel, content: bytes) -> None:
        """Send all of `content`, waiting for space in the host's window. Raises OSError once it is closed."""
        while content:
            with self._send_lock:
                sent_bytes = channel.send(content) if channel.send_ready() else 0  # never waits if there is space
            content = content[sent_bytes:]
            if not sent_bytes:
                _wait_for_window(channel)

    def end_input(self, channel: paramiko.Channel) -> None:
        with self._send_lock:
            channel.shutdown_write()

    def close_channel(self, channel: paramiko.Channel) -> None:
        with self._send_lock:
            channel.close()

    def _handle_close_in_order(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        with self._send_lock:
            self._handle_close(channel, message)


def _wait_for_window(channel: paramiko.Channel) -> None:
    with channel.out_buffer_cv:
        channel.out_buffer_cv.wait_for(
            lambda: channel.closed or channel.eof_sent or channel.out_window_size > 0, _WINDOW_POLL_SEC
        )
