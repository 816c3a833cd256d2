"""Fake model hub: the HTTP that huggingface_hub uses to fetch a model, with switches for faults.

    with FakeHub({"config.json": b"{}"}) as hub:        # at hub.host, with the files of the only model, org/tiny
        hub.faults = {"gated": True, "token": "hf_x"}

Faults: gated (but for `token`), cut (bytes after which each of the first `cuts` responses with a large file breaks),
flip (name of a file with a flipped bit), slow (seconds per 64 KiB). `requests` has a record of each request: path,
range, bytes sent, and the authorization scheme. Not covered: Xet storage, redirects to a content network, rate limits.
"""

import hashlib
import json
import time
from typing import Any

from tests.support.machines.http_stubs import StubHandler, StubServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_MIN_BYTES = 100_000  # larger files are "LFS", with a sha256
MODEL = "org/tiny"


class FakeHub(StubServer):
    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(_Handler)
        self.files, self.faults, self.requests = files, dict[str, Any](), list[dict[str, Any]]()
        self.cuts = 0

    def handle_error(self, *_: object) -> None:
        """Ignore errors: a client that is killed hangs up."""


class _Handler(StubHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_GET(self) -> None:
        path, authorization = self.path.partition("?")[0], self.headers.get("Authorization", "")
        faults = self.server.faults
        if path.startswith(f"/api/models/{MODEL}"):
            revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
            if revision not in ("main", "v1", COMMIT):
                return self._send_error(404, "RevisionNotFound", "Invalid rev id")
            return self._send(json.dumps(self._model_info()).encode(), {"Content-Type": "application/json"})
        if not path.startswith(f"/{MODEL}/resolve/"):
            return self._send_error(404, "RepoNotFound", "Repository not found")
        if faults.get("gated") and authorization != f"Bearer {faults.get('token')}":
            return self._send_error(403 if authorization else 401, "GatedRepo", f"Access to {MODEL} is restricted.")
        name = path.split("/", 5)[5]
        if name not in self.server.files:
            return self._send_error(404, "EntryNotFound", "Entry not found")
        content = self.server.files[name]
        etag = hashlib.sha256(content).hexdigest() if len(content) > LFS_MIN_BYTES else git_sha1(content)
        if faults.get("flip") == name:
            content = content[:50_000] + bytes([content[50_000] ^ 1]) + content[50_001:]
        return self._send(content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"})

    do_HEAD = do_GET

    def _model_info(self) -> dict[str, Any]:
        siblings = []
        for name, content in sorted(self.server.files.items()):
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
            if len(content) > LFS_MIN_BYTES:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {"id": MODEL, "modelId": MODEL, "sha": COMMIT, "private": False, "gated": False, "tags": [],
                "downloads": 0, "likes": 0, "siblings": siblings}  # fmt: skip

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        byte_range = self.headers.get("Range")
        start = int(byte_range.removeprefix("bytes=").partition("-")[0]) if byte_range else 0
        body = content[start:]
        ranges = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if byte_range else {}
        self.send_head(206 if byte_range else 200, {**headers, **ranges, "Content-Length": str(len(body))})
        record = self._record(byte_range)
        if self.command == "HEAD":
            return
        faults, stop, is_large = self.server.faults, len(body), len(body) > LFS_MIN_BYTES
        if is_large and self.server.cuts < faults.get("cuts", 0):
            self.server.cuts += 1
            stop, self.close_connection = min(stop, faults["cut"]), True
        for at in range(0, stop, 65_536):
            self.wfile.write(body[at : min(stop, at + 65_536)])
            record["sent"] = min(stop, at + 65_536)
            time.sleep(faults.get("slow", 0) if is_large else 0)

    def _send_error(self, status: int, code: str, message: str) -> None:
        self._record(None)
        self.reply(status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def _record(self, byte_range: str | None) -> dict[str, Any]:
        scheme = self.headers.get("Authorization", "").partition(" ")[0]
        self.server.requests.append({"path": self.path, "range": byte_range, "sent": 0, "as": scheme})
        return self.server.requests[-1]


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
