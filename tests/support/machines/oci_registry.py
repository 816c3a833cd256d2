"""A small registry in a thread that speaks OCI 1.1: blobs, manifests, and a list of what refers to a manifest.

    with OciRegistry() as registry:           # registry.host; plain HTTP, on this machine
        registry.lists = False                # a registry from before OCI 1.1, as Debian's docker-registry is

Not covered: logins, TLS, uploads in pieces, deletion; tests/system has Debian's registry for those.
"""

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.machines.http_stubs import Answering, Serving

INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class OciRegistry(Serving):
    """`blobs` and `manifests` by digest, `tags` to digests. A page of the list has `page_size` entries."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.lists, self.page_size, self.next_page_at = True, 2, ""
        self.fails_once: list[tuple[str, str]] = []  # method and part of a path that is answered with 503, once

    def put(self, content: bytes, *tags: str) -> str:
        """A manifest, as if somebody had pushed it; its digest."""
        digest = digest_of(content)
        self.manifests[digest] = content
        self.tags |= dict.fromkeys(tags, digest)
        return digest

    def referrers(self, digest: str) -> list[dict[str, Any]]:
        found = []
        for name, content in self.manifests.items():
            manifest = json.loads(content)
            if (manifest.get("subject") or {}).get("digest") == digest:
                entry = {"mediaType": manifest["mediaType"], "digest": name, "size": len(content)}
                found.append({**entry, "artifactType": manifest["artifactType"]})
        return found


class _Handler(Answering):
    server: OciRegistry

    def _what(self) -> tuple[str, str]:
        """The kind of thing that is asked for, and its name."""
        parts = urlsplit(self.path).path.rsplit("/", 2)
        return parts[-2], parts[-1]

    def do_GET(self) -> None:
        kind, name = self._what()
        if self._failing():
            return
        if kind == "referrers" and self.server.lists:
            self._list(name)
        elif kind == "manifests" and (digest := self.server.tags.get(name, name)) in self.server.manifests:
            self.reply(200, self.server.manifests[digest])
        elif kind == "blobs" and name in self.server.blobs:
            self.reply(200, self.server.blobs[name])
        else:
            self.reply(404)

    do_HEAD = do_GET

    def _list(self, digest: str) -> None:
        found, first = self.server.referrers(digest), int(parse_qs(urlsplit(self.path).query).get("n", ["0"])[0])
        until = first + self.server.page_size
        more = {}
        if until < len(found):
            more["Link"] = f'<{self.server.next_page_at}{urlsplit(self.path).path}?n={until}>; rel="next"'
        self.reply(
            200, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": found[first:until]}).encode(), more
        )

    def do_POST(self) -> None:
        self.reply(202, b"", {"Location": f"{self.path}one"})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._failing():
            return
        kind, name = self._what()
        if kind == "manifests":
            subject = (json.loads(content).get("subject") or {}).get("digest")
            digest = self.server.put(content, *([] if name.startswith("sha256:") else [name]))
            assert name in (digest, *self.server.tags)
            self.reply(201, b"", {"OCI-Subject": subject} if subject and self.server.lists else {})
        else:
            (digest,) = parse_qs(urlsplit(self.path).query)["digest"]
            assert digest == digest_of(content)
            self.server.blobs[digest] = content
            self.reply(201)

    def _failing(self) -> bool:
        for fault in self.server.fails_once:
            if fault[0] == self.command and fault[1] in self.path:
                self.server.fails_once.remove(fault)
                self.reply(503)
                return True
        return False
