"""Opens one strict SSH connection for each hop, each through the one before.

Fabric chains the connections; its lax defaults are replaced here: host keys come from known_hosts alone and are checked
before any name or key of ours is sent, our keys are offered as the user's configuration says, every phase has a
deadline, and a dead link is noticed within a minute, whichever hop it is on.

Not covered: passwords, Kerberos, certificates (for hosts see `remote.ssh.known_hosts`; users need plain keys).
"""

import contextlib
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.pkey import UnknownKeyType

from remote.hosts.host import HostError, HostKeyRefused, HostUnreachable, InvalidAddress
from remote.hosts.process import end
from remote.ssh.auth import Keys
from remote.ssh.config import Hop
from remote.ssh.known_hosts import complaint, known_keys, name_of
from remote.ssh.transport import PatchedTransport

_HANDSHAKE_SEC = 30.0
_NO_SESSION_LEFT = (2, 4)  # RFC 4254, 5.1: connect failed (what OpenSSH answers), resource shortage
_PULSE_SEC = 10.0
_PULSE_DEADLINE_SEC = 30.0
# Measured on a cut link: without these a connection hangs for ever, with paramiko's own keepalive for 955 s.
_KERNEL = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}

# Paramiko logs what it also raises, with tracebacks; without a handler of its own Python prints them on the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection:
    """An open connection to the last hop. Sessions are opened on `transport`; `close` ends every hop."""

    def __init__(self, hops: tuple[Hop, ...]) -> None:
        """Connect and log in at every hop. Raises HostKeyRefused, LoginRefused, AddressWrong, HostUnreachable."""
        self._closing = contextlib.ExitStack()
        try:
            previous: fabric.Connection | None = None
            for hop in hops:
                previous = self._open(hop, previous)
            assert previous is not None and isinstance(previous.transport, PatchedTransport)  # noqa: S101, PT018
            self.transport = previous.transport
        except BaseException:
            self._closing.close()
            raise
        self._stopped, self._opening = threading.Event(), threading.Lock()
        threading.Thread(target=self._feel_pulse, name="ssh-pulse", daemon=True).start()

    def is_open(self) -> bool:
        return self.transport.is_active()

    def session(self, within_sec: float = _HANDSHAKE_SEC) -> paramiko.Channel:
        """A new session, once the server has one free: it allows ten (MaxSessions). Raises what Paramiko does."""
        until = time.monotonic() + within_sec
        while True:
            try:
                with self._opening:  # one at a time: Paramiko keeps one answer for all
                    return self.transport.open_session(timeout=within_sec)
            except paramiko.ChannelException as error:
                if error.code not in _NO_SESSION_LEFT or time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def close(self) -> None:
        self._stopped.set()
        self.transport.close()  # first: it releases the threads that wait for an answer
        self._closing.close()

    def _open(self, hop: Hop, previous: fabric.Connection | None) -> fabric.Connection:
        keys = Keys(hop)
        kwargs: dict[str, Any] = {
            "auth_strategy": keys,
            "banner_timeout": _HANDSHAKE_SEC,
            "auth_timeout": _HANDSHAKE_SEC,
            "channel_timeout": _HANDSHAKE_SEC,
            "transport_factory": PatchedTransport,
        }
        try:
            if previous is None:
                kwargs["sock"] = self._closing.enter_context(_first_socket(hop))
            config = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())  # no fabric.yaml, no second ssh config
            connection = fabric.Connection(
                hop.hostname, user=hop.user, port=hop.port, config=config, gateway=previous, connect_kwargs=kwargs
            )
            policy = StrictHostKeyPolicy(hop)
            policy.teach(connection.client)
            self._closing.callback(connection.close)
            connection.open()
        except paramiko.BadHostKeyException as error:
            raise HostKeyRefused(policy.complaint(error.key)) from None
        except AuthFailure as error:
            raise keys.complaint(error) from None
        # ValueError: what came is no text, or no key.
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            raise _explained(hop, error) from None
        finally:
            keys.close()
        return connection

    def _feel_pulse(self) -> None:
        """Ask the last hop for an answer every few seconds; end the connection if none comes in time.

        The kernel watches the first hop's socket only: a bastion's link to the machine behind it can die unnoticed.
        """
        while not self._stopped.wait(_PULSE_SEC) and self.transport.is_active():
            alarm = threading.Timer(_PULSE_DEADLINE_SEC, self.transport.close)
            alarm.daemon = True
            alarm.start()
            try:
                self.transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return  # whoever uses the connection sees that it is closed
            finally:
                alarm.cancel()


# --- the first hop's socket -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _first_socket(hop: Hop) -> Iterator[socket.socket]:
    if hop.proxy_command is not None:
        with _through_program(hop.proxy_command) as plug:
            yield plug
        return
    with socket.create_connection((hop.hostname, hop.port), hop.connect_timeout_sec) as plug:
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # measured: 12 ms a command instead of 44
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KERNEL.items():
            if (option := getattr(socket, name, None)) is not None:  # macOS has not all of them; the pulse remains
                plug.setsockopt(socket.IPPROTO_TCP, option, value)
        yield plug


@contextlib.contextmanager
def _through_program(command: str) -> Iterator[socket.socket]:
    """A ProxyCommand's standard streams as a real socket, which Paramiko's own wrapper is not."""
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
            end(process)


def _explained(hop: Hop, error: Exception) -> HostError:
    message = str(error) or type(error).__name__
    is_no_name = "idna" in message and isinstance(error, UnicodeError)  # a label is empty, or longer than 63 letters
    if is_no_name or isinstance(error, socket.gaierror):
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
            return HostUnreachable(
                f"{hop}: its name cannot be looked up now: {error.strerror}; is this machine online?"
            )
        return InvalidAddress(
            f"{hop}: no machine of that name; correct it, or give its HostName in the ssh configuration"
        )
    if isinstance(error, ConnectionRefusedError):
        return HostUnreachable(
            f"{hop}: nothing listens on port {hop.port}; is it up, and is that the port of its sshd?"
        )
    if isinstance(error, TimeoutError):
        return HostUnreachable(
            f"{hop}: no answer within {hop.connect_timeout_sec:g} s; is it up, and does a firewall or security list "
            f"let port {hop.port} through?"
        )
    if isinstance(error, paramiko.ChannelException):
        if error.code == 1:
            return InvalidAddress(f"{hop}: the jump host before it forbids connections onwards (AllowTcpForwarding)")
        return HostUnreachable(f"{hop}: the jump host before it cannot connect to it: {error.text or message}")
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return InvalidAddress(f"{hop}: no common cryptography: {message}; its sshd is too old")
    if "Indecipherable protocol" in message or "Invalid packet" in message:
        return InvalidAddress(f"{hop}: what answers there does not speak SSH; correct the port")
    if "protocol banner" in message:
        return HostUnreachable(
            f"{hop}: no SSH greeting from what listens there; is {hop.port} the port of its sshd, or is it overloaded?"
        )
    return HostUnreachable(f"{hop}: the connection broke while it was made: {message}")


# --- host keys --------------------------------------------------------------------------------------------------------


class StrictHostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Accepts the keys that known_hosts lists and refuses any other, with the reason."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        try:
            self._known = known_keys(hop.known_hosts_files, hop.known_as, hop.port)
        except OSError as error:
            raise InvalidAddress(
                f"{error.filename}: cannot be read: {error.strerror}; it lists the keys to trust"
            ) from None

    def teach(self, client: paramiko.SSHClient) -> None:
        """Give `client` the keys it may accept; it then asks the host for a key of a known kind."""
        client.set_missing_host_key_policy(self)
        name = name_of(self._hop.hostname, self._hop.port)
        revoked = {key.blob for key in self._known if key.revoked}
        for known in self._known:
            if known.blob not in revoked:
                with contextlib.suppress(UnknownKeyType, paramiko.SSHException):  # of a kind we cannot check
                    key = paramiko.PKey.from_type_string(known.kind, known.blob)
                    client.get_host_keys().add(name, known.kind, key)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        raise HostKeyRefused(self.complaint(key))

    def complaint(self, key: paramiko.PKey) -> str:
        hop = self._hop
        why = complaint(self._known, hop.known_hosts_files, hop.known_as, hop.port, key.get_name(), key.asbytes())
        return f"{hop}: {why}"
