"""HTTP server in the place of a registry, with switches for faults of a network or a hostile registry.

    with RegistryProxy(answer=...) as proxy:     # clients connect to proxy.host
        proxy.arm(Redirect(to="http://elsewhere:8099"))                          # from now on
        proxy.arm(Cut(after=1000), method="POST", times=1)                       # only the next request
        proxy.requests                                                           # method, path, Authorization of each

A switch is a value that defines the fault. `arm` selects the requests, by count and never by time. The first armed
switch that matches is used; without one, the response is that of `answer`. With `certificate` and `key` the server
uses TLS.

Not covered: HTTP/2, and requests with a body.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
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
    """A pause until the server ends, in which nothing is read or sent. The connection stays open."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A connection that is closed after this many bytes of the response's body."""

    after: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One flipped bit in the response's body."""

    at: int = 0


Switch = Redirect | FixedResponse | Endless | Stall | Cut | Change


class RegistryProxy(StubServer):
    """The server. `answer` gets method and path of a request."""

    def __init__(
        self,
        *,
        answer: Callable[[str, str], FixedResponse] = lambda *_: FixedResponse(status=404),
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        super().__init__(_Handler)
        self.answer = answer
        self.requests: list[tuple[str, str, str]] = []
        self._armed: list[tuple[Switch, str | None, Iterator[None]]] = []
        self.released = threading.Event()
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, key)
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def __exit__(self, *error: object) -> None:
        self.released.set()
        super().__exit__(*error)

    def handle_error(self, *_: object) -> None:
        """Ignore errors: clients hang up, or do not use TLS."""

    def arm(self, switch: Switch, *, method: str | None = None, times: int | None = None) -> None:
        """Apply a switch to requests of `method` (None: any), `times` (None: every one)."""
        self._armed.append((switch, method, repeat(None) if times is None else repeat(None, times)))

    def switch_for(self, method: str) -> Switch | None:
        matching = ((switch, left) for switch, wanted, left in self._armed if wanted in (None, method))
        return next((switch for switch, left in matching for _ in left), None)


class _Handler(StubHandler):
    protocol_version = "HTTP/1.1"
    server: RegistryProxy

    def _handle(self) -> None:
        proxy, authorization = self.server, self.headers.get("Authorization", "")
        proxy.requests.append((self.command, self.path, authorization))
        switch = proxy.switch_for(self.command)
        if isinstance(switch, Endless):
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            while True:
                self.wfile.write(switch.chunk)
        elif isinstance(switch, Stall):
            self.close_connection = True
            proxy.released.wait()
        elif isinstance(switch, Redirect):
            self._send(FixedResponse(status=307, headers={"Location": switch.to + self.path}))
        elif isinstance(switch, FixedResponse):
            self._send(switch)
        else:
            self._send(proxy.answer(self.command, self.path), switch)

    def _send(self, response: FixedResponse, fault: Cut | Change | None = None) -> None:
        body = bytearray(response.body)
        self.send_response_only(response.status)
        for name, value in {"Content-Length": str(len(body)), **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if isinstance(fault, Change):
            body[fault.at] ^= 1
        elif isinstance(fault, Cut):
            del body[fault.after :]
            self.close_connection = True
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_GET = do_HEAD = do_POST = do_DELETE = _handle
