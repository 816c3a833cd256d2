"""Webhook of an operator over TLS, in a thread: records each request; tests set the statuses of the next ones."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubernetes import pki
from tests.support.machines.http_stubs import StubHandler, StubServer


@dataclass(frozen=True, kw_only=True)
class ReceivedRequest:
    path: str
    headers: Mapping[str, str]
    body: bytes


class Webhook(StubServer):
    """Server with a certificate for 127.0.0.1 and localhost by the authority in `authority`, a PEM file in `folder`.

    `statuses` are those of the next requests, then 204; a redirect leads to `location`. A response with 100 has no end.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(_Handler)
        self.authority, tls = pki.make(folder)
        self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://{self.host}/hook"
        self.requests: list[ReceivedRequest] = []
        self.statuses: list[int] = []
        self.location = "/"


class _Handler(StubHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append(ReceivedRequest(path=self.path, headers=dict(self.headers), body=body))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        with contextlib.suppress(OSError):
            while status == 100:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.reply(status, headers={"Location": self.server.location} if 300 <= status < 400 else None)
