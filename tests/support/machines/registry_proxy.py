"""HTTP proxy in front of a registry, with switches for faults of a network or a hostile registry.

    with RegistryProxy(upstream="http://127.0.0.1:5000") as proxy:     # clients connect to proxy.host
        proxy.arm(Redirect(to="http://elsewhere:8099"), path="/manifests/")      # from now on, until `disarm`
        proxy.arm(Cut(after=1000), method="PATCH", times=1)                      # only the next request
        proxy.requests                                                           # method, path, Authorization of each

A switch is a value that defines the fault. `arm` selects the requests, by count and never by time. The first armed
switch that matches is used. With `certificate` and `key` the proxy uses TLS; `network` puts it into another machine
(`Machine.network_of_this_thread`).

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

from tests.support.machines.http_stubs import StubHandler, StubServer

CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Redirect:
    """A redirect to the same path below `to`."""

    to: str


@dataclass(frozen=True, kw_only=True)
class FixedResponse:
    """This response instead of the registry's."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Endless:
    """A response without end."""

    chunk: bytes = b"x" * CHUNK_BYTES


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A pause until `RegistryProxy.release`, in which nothing is read or sent. The connection stays open."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A connection that is closed after this many bytes of the response's body."""

    after: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One flipped bit in the response's body."""

    at: int = 0


Switch = Redirect | FixedResponse | Endless | Stall | Cut | Change


@dataclass(kw_only=True)
class _Armed:
    switch: Switch
    method: str | None
    path: str
    remaining: int | None


class RegistryProxy(StubServer):
    """The proxy. `upstream` is the registry's address; its certificate is not checked."""

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
        self.requests: list[tuple[str, str, str]] = []
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
        """Ignore errors: clients hang up, or do not use TLS."""

    def arm(self, switch: Switch, *, method: str | None = None, path: str = "", times: int | None = None) -> None:
        """Apply a switch to requests of `method` (None: any) whose path contains `path`, `times` or until `disarm`."""
        with self._lock:
            self._armed.append(_Armed(switch=switch, method=method, path=path, remaining=times))

    def disarm(self) -> None:
        """Let all new requests pass; stalled requests stay stalled."""
        with self._lock:
            self._armed.clear()

    def release(self) -> None:
        """End every stall, by closing its connection."""
        self.released.set()

    def switch_for(self, method: str, path: str) -> Switch | None:
        with self._lock:
            for armed in self._armed:
                if armed.method in (None, method) and armed.path in path and armed.remaining != 0:
                    armed.remaining = None if armed.remaining is None else armed.remaining - 1
                    return armed.switch
        return None

    def connect(self) -> http.client.HTTPConnection:
        address, port = self.upstream.hostname or "", self.upstream.port
        with self._network():
            connection: http.client.HTTPConnection
            if self.upstream.scheme == "https":
                unverified = ssl._create_unverified_context()  # noqa: S323 - the tests' own registry
                connection = http.client.HTTPSConnection(address, port, timeout=120, context=unverified)
            else:
                connection = http.client.HTTPConnection(address, port, timeout=120)
            connection.connect()
        return connection


class _Handler(StubHandler):
    protocol_version = "HTTP/1.1"
    server: RegistryProxy

    def _handle(self) -> None:
        proxy, authorization = self.server, self.headers.get("Authorization", "")
        proxy.requests.append((self.command, self.path, authorization))
        switch = proxy.switch_for(self.command, self.path)
        if isinstance(switch, Redirect):
            self._drain()
            self._send(307, {"Location": switch.to + self.path}, b"")
        elif isinstance(switch, FixedResponse):
            self._drain()
            self._send(switch.status, switch.headers, switch.body)
        elif isinstance(switch, Endless):
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            while True:
                self.wfile.write(switch.chunk)
        elif isinstance(switch, Stall):
            self.close_connection = True
            proxy.released.wait()
        else:
            self._forward(switch)

    def _forward(self, switch: Cut | Change | None) -> None:
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
            for chunk in self._body_chunks():
                connection.send(b"%x\r\n%s\r\n" % (len(chunk), chunk) if is_chunked else chunk)
            if is_chunked:
                connection.send(b"0\r\n\r\n")
            response = connection.getresponse()
            body = bytearray(response.read())
        headers = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_HEADERS}
        if self.command == "HEAD":
            headers["Content-Length"] = response.getheader("Content-Length") or "0"
        if isinstance(switch, Change) and body:
            body[switch.at % len(body)] ^= 1
        self._send(response.status, headers, bytes(body), cut=switch.after if isinstance(switch, Cut) else None)

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def _body_chunks(self) -> Iterator[bytes]:
        """Read the request's body in chunks."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                while size:
                    chunk = self.rfile.read(min(size, CHUNK_BYTES))
                    size -= len(chunk)
                    yield chunk
                self.rfile.readline()
            self.rfile.readline()
            return
        remaining = int(self.headers.get("Content-Length") or 0)
        while remaining and (chunk := self.rfile.read(min(remaining, CHUNK_BYTES))):
            remaining -= len(chunk)
            yield chunk

    def _drain(self) -> None:
        for _ in self._body_chunks():
            pass

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle


_HOP_HEADERS = ("content-length", "transfer-encoding", "connection")
