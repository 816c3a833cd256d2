"""Fake model hub: the HTTP that huggingface_hub uses to fetch a model, with switches for faults.

    python -m tests.support.machines.fake_hub FOLDER PORT      (on the machine where the hub's client runs)

FOLDER/files contains the files of the only model, org/tiny. FOLDER/faults, a JSON object, is read at every request:
gated, cut (bytes after which each of the first `cuts` responses with a large file breaks), flip (name of a file with a
flipped bit), slow (seconds per 64 KiB).
FOLDER/requests.jsonl has a line per request: path, status, range, bytes sent, and the authorization scheme.
Not covered: Xet storage, redirects to a content network, rate limits.
"""

import hashlib
import json
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.machines.http_stubs import StubHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_MIN_BYTES = 100_000  # larger files are "LFS", with a sha256
MODEL = "org/tiny"


class FakeHub(StubHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    lock = threading.Lock()

    def do_GET(self) -> None:
        faults = json.loads((self.folder / "faults").read_text())
        path = self.path.partition("?")[0]
        authorized = self.headers.get("Authorization") == f"Bearer {faults.get('token', 'none')}"
        if path.startswith(f"/api/models/{MODEL}"):
            revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
            if revision not in ("main", "v1", COMMIT):
                return self._send_error(404, "RevisionNotFound", "Invalid rev id")
            return self._send(json.dumps(self._model_info(faults)).encode(), "application/json")
        if path.startswith(f"/{MODEL}/resolve/"):
            if faults.get("gated") and not authorized:
                code = 403 if self.headers.get("Authorization") else 401
                return self._send_error(code, "GatedRepo", f"Access to model {MODEL} is restricted.")
            return self._send_file(path.split("/", 5)[5], faults)
        return self._send_error(404, "RepoNotFound", "Repository not found")

    do_HEAD = do_GET

    def _model_info(self, faults: dict[str, Any]) -> dict[str, Any]:
        siblings = []
        for path in sorted((self.folder / "files").iterdir()):
            content = path.read_bytes()
            entry: dict[str, Any] = {"rfilename": path.name, "size": len(content), "blobId": git_sha1(content)}
            if len(content) > LFS_MIN_BYTES:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {"id": MODEL, "modelId": MODEL, "sha": COMMIT, "private": False, "gated": bool(faults.get("gated")),
                "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}  # fmt: skip

    def _send_file(self, name: str, faults: dict[str, Any]) -> None:
        path = self.folder / "files" / name
        if not path.is_file():
            return self._send_error(404, "EntryNotFound", "Entry not found")
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest() if len(content) > LFS_MIN_BYTES else git_sha1(content)
        if faults.get("flip") == name:
            content = content[:50_000] + bytes([content[50_000] ^ 1]) + content[50_001:]
        return self._send(content, "application/octet-stream", etag=etag, faults=faults)

    def _send(
        self, content: bytes, kind: str, *, etag: str | None = None, faults: dict[str, Any] | None = None
    ) -> None:
        faults, byte_range = faults or {}, self.headers.get("Range")
        start = int(byte_range.removeprefix("bytes=").partition("-")[0]) if byte_range else 0
        body, status, is_head = content[start:], 206 if byte_range else 200, self.command == "HEAD"
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        if byte_range:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if etag is not None:
            headers |= {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        self.send_head(status, headers)
        sent = 0 if is_head else self._write_body(body, faults)
        self._log_request(status, byte_range, sent)
        if not is_head and sent < len(body):
            self.close_connection = True

    def _write_body(self, body: bytes, faults: dict[str, Any]) -> int:
        stop = len(body)
        if len(body) > LFS_MIN_BYTES and faults.get("cut"):
            with self.lock:
                counter = self.folder / "cuts"
                counter.touch()
                if counter.stat().st_size < faults["cuts"]:
                    counter.write_text(counter.read_text() + ".")
                    stop = min(stop, faults["cut"])
        sent = 0
        while sent < stop:
            chunk = body[sent : min(stop, sent + 65_536)]
            self.wfile.write(chunk)
            sent += len(chunk)
            if len(body) > LFS_MIN_BYTES:
                time.sleep(faults.get("slow", 0))
        self.wfile.flush()
        return sent

    def _send_error(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        headers = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"}
        self.reply(status, body, headers)
        self._log_request(status, None, 0)

    def _log_request(self, status: int, byte_range: str | None, sent: int) -> None:
        scheme = (self.headers.get("Authorization") or "").partition(" ")[0]
        line = {"path": self.path, "method": self.command, "status": status, "range": byte_range}
        line |= {"sent": sent, "as": scheme}
        with self.lock, (self.folder / "requests.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    FakeHub.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), FakeHub).serve_forever()  # noqa: S104 - in a separate network namespace
