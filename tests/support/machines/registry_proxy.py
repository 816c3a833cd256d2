"""An HTTP proxy before a registry, with switches for what a network and a hostile registry do to answers.

    with RegistryProxy(upstream="http://127.0.0.1:5000") as proxy:     # proxy.host is what a client is given
        proxy.arm(Redirect(to="http://elsewhere:8099"), path="/manifests/")      # from now on, until `disarm`
        proxy.arm(Cut(after=1000), method="PATCH", times=1)                      # the next one alone
        proxy.asked                                                            # method, path, Authorization of each

A switch is a value that says what happens; `arm` says to which requests, counted and never timed. The first armed
switch that fits decides. With `certificate` and `key` the proxy speaks TLS; `network` puts it into another machine
(`Machine.network_of_this_thread`). A random walk draws from `ANYTHING`.

Not covered: HTTP/2, and pipelined requests.
"""

import contextlib
import http.client
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.machines.http_stubs import Answering, Serving

PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Redirect:
    """The request is sent elsewhere: the same path below `to`."""

    to: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """This answer, whatever the registry would say."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Endless:
    """An answer that goes on for as long as somebody reads."""

    piece: bytes = b"x" * PIECE


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Nothing more is read or sent until `RegistryProxy.release`. The connection stays open."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The connection is closed after this many bytes of the answer's body."""

    after: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One bit of the answer's body is another."""

    at: int = 0


Switch = Redirect | Answer | Endless | Stall | Cut | Change
ANYTHING: tuple[Switch, ...] = (
    Redirect(to="https://127.0.0.1:1"),
    Answer(status=403, body=b'{"errors": [{"code": "DENIED"}]}'),
    Answer(status=503),
    Answer(status=200, body=b"<html>a captive portal</html>", headers={"Content-Type": "text/html"}),
    Endless(),
    Stall(),
    Cut(after=10),
    Change(at=20),
)


@dataclass(kw_only=True)
class _Armed:
    switch: Switch
    method: str | None
    path: str
    left: int | None


class RegistryProxy(Serving):
    """See the module. `upstream` is the registry's address; its certificate is not checked."""

    def __init__(
        self,
        *,
        upstream: str,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        certificate: Path | None = None,
        key: Path | None = None,
        network: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        with network():
            super().__init__(_Handler, listen)
        self.upstream, self._network = urllib.parse.urlsplit(upstream), network
        self.asked: list[tuple[str, str, str]] = []
        self._armed: list[_Armed] = []
        self._lock, self.released = threading.Lock(), threading.Event()
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, key)
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def __exit__(self, *error: object) -> None:
        self.release()
        super().__exit__(*error)

    def handle_error(self, *_: object) -> None:
        """A client that hangs up, or does not speak TLS, is part of the game."""

    def arm(self, switch: Switch, *, method: str | None = None, path: str = "", times: int | None = None) -> None:
        """Strike requests of `method` (None: any) whose path holds `path`; `times` None: until `disarm`."""
        with self._lock:
            self._armed.append(_Armed(switch=switch, method=method, path=path, left=times))

    def disarm(self) -> None:
        """From now on everything passes; what is stalled stays so."""
        with self._lock:
            self._armed.clear()

    def release(self) -> None:
        """End every stall, by closing its connection."""
        self.released.set()

    def stalled(self) -> None:
        """Let new stalls be: undoes `release`."""
        self.released.clear()

    def switch_for(self, method: str, path: str) -> Switch | None:
        with self._lock:
            for armed in self._armed:
                if armed.method in (None, method) and armed.path in path and armed.left != 0:
                    armed.left = None if armed.left is None else armed.left - 1
                    return armed.switch
        return None

    def connect(self) -> http.client.HTTPConnection:
        address, port = self.upstream.hostname or "", self.upstream.port
        with self._network():
            made: http.client.HTTPConnection
            if self.upstream.scheme == "https":
                trusting = ssl._create_unverified_context()  # noqa: S323 - a registry of the tests' own
                made = http.client.HTTPSConnection(address, port, timeout=120, context=trusting)
            else:
                made = http.client.HTTPConnection(address, port, timeout=120)
            made.connect()
        return made


class _Handler(Answering):
    protocol_version = "HTTP/1.1"
    server: RegistryProxy

    def _handle(self) -> None:
        proxy, authorization = self.server, self.headers.get("Authorization", "")
        proxy.asked.append((self.command, self.path, authorization))
        switch = proxy.switch_for(self.command, self.path)
        if isinstance(switch, Redirect):
            self._drain()
            self._say(307, {"Location": switch.to + self.path}, b"")
        elif isinstance(switch, Answer):
            self._drain()
            self._say(switch.status, switch.headers, switch.body)
        elif isinstance(switch, Endless):
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            while True:
                self.wfile.write(switch.piece)
        elif isinstance(switch, Stall):
            self.close_connection = True
            proxy.released.wait()
        else:
            self._pass_on(switch)

    def _pass_on(self, switch: Cut | Change | None) -> None:
        connection = self.server.connect()
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "transfer-encoding"):
                    connection.putheader(name, value)
            is_chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
            if is_chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            for piece in self._body():
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
            if is_chunked:
                connection.send(b"0\r\n\r\n")
            answer = connection.getresponse()
            body = bytearray(answer.read())
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
        if self.command == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length") or "0"
        if isinstance(switch, Change) and body:
            body[switch.at % len(body)] ^= 1
        self._say(answer.status, headers, bytes(body), cut=switch.after if isinstance(switch, Cut) else None)

    def _say(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def _body(self) -> Iterator[bytes]:
        """The request's body in pieces."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                while size:
                    piece = self.rfile.read(min(size, PIECE))
                    size -= len(piece)
                    yield piece
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left and (piece := self.rfile.read(min(left, PIECE))):
            left -= len(piece)
            yield piece

    def _drain(self) -> None:
        for _ in self._body():
            pass

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle


_OWN = ("content-length", "transfer-encoding", "connection")
