"""Small registry in a thread that implements OCI 1.1: blobs, manifests, and lists of referrers.

    with OciRegistry() as registry:           # registry.host; plain HTTP, on this machine
        registry.lists_referrers = False      # a registry older than OCI 1.1, like Debian's docker-registry

Not covered: logins, TLS, chunked uploads, deletion; tests/system has Debian's registry for those.
"""

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.machines.http_stubs import StubHandler, StubServer

INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class OciRegistry(StubServer):
    """The registry: `blobs` and `manifests` by digest, `tags` to digests; a list has pages of `page_size` entries."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.lists_referrers, self.page_size, self.next_page_server = True, 2, ""
        self.fails_once: list[tuple[str, str]] = []  # method and part of a path whose next request gets a 503

    def put(self, content: bytes, *tags: str) -> str:
        """Store a manifest as if it had been pushed. Returns its digest."""
        digest = digest_of(content)
        self.manifests[digest] = content
        self.tags |= dict.fromkeys(tags, digest)
        return digest

    def referrers(self, digest: str) -> list[dict[str, Any]]:
        descriptors = []
        for name, content in self.manifests.items():
            manifest = json.loads(content)
            if (manifest.get("subject") or {}).get("digest") == digest:
                entry = {"mediaType": manifest["mediaType"], "digest": name, "size": len(content)}
                descriptors.append({**entry, "artifactType": manifest["artifactType"]})
        return descriptors


class _Handler(StubHandler):
    server: OciRegistry

    def _parse_path(self) -> tuple[str, str]:
        """Parse the request's path into kind (manifests, blobs, referrers) and name."""
        parts = urlsplit(self.path).path.rsplit("/", 2)
        return parts[-2], parts[-1]

    def do_GET(self) -> None:
        kind, name = self._parse_path()
        if self._fail_once():
            return
        if kind == "referrers" and self.server.lists_referrers:
            self._send_referrers(name)
        elif kind == "manifests" and (digest := self.server.tags.get(name, name)) in self.server.manifests:
            self.reply(200, self.server.manifests[digest])
        elif kind == "blobs" and name in self.server.blobs:
            self.reply(200, self.server.blobs[name])
        else:
            self.reply(404)

    do_HEAD = do_GET

    def _send_referrers(self, digest: str) -> None:
        descriptors, first = self.server.referrers(digest), int(parse_qs(urlsplit(self.path).query).get("n", ["0"])[0])
        end = first + self.server.page_size
        headers = {}
        if end < len(descriptors):
            headers["Link"] = f'<{self.server.next_page_server}{urlsplit(self.path).path}?n={end}>; rel="next"'
        page = {"schemaVersion": 2, "mediaType": INDEX, "manifests": descriptors[first:end]}
        self.reply(200, json.dumps(page).encode(), headers)

    def do_POST(self) -> None:
        self.reply(202, b"", {"Location": f"{self.path}one"})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._fail_once():
            return
        kind, name = self._parse_path()
        if kind == "manifests":
            subject = (json.loads(content).get("subject") or {}).get("digest")
            digest = self.server.put(content, *([] if name.startswith("sha256:") else [name]))
            assert name in (digest, *self.server.tags)
            self.reply(201, b"", {"OCI-Subject": subject} if subject and self.server.lists_referrers else {})
        else:
            (digest,) = parse_qs(urlsplit(self.path).query)["digest"]
            assert digest == digest_of(content)
            self.server.blobs[digest] = content
            self.reply(201)

    def _fail_once(self) -> bool:
        for fault in self.server.fails_once:
            if fault[0] == self.command and fault[1] in self.path:
                self.server.fails_once.remove(fault)
                self.reply(503)
                return True
        return False
