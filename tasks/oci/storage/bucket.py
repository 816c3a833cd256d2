"""One bucket of Object Storage: what lies there, and files into it, each confirmed by the service.

Whatever is sent has its MD5 in a header: the service takes no other bytes, and answers with the MD5 of what it took. A
file of more than PART_BYTES goes up in parts. Parts that have arrived stay with the bucket until their file is whole: a
push that was killed goes on with them.
"""

import base64
import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oci.object_storage import ObjectStorageClient

from tasks.errors import ConfirmationRequired, RetryableError
from tasks.oci.access.clients import Access, Json
from tasks.oci.access.errors import ServiceCall

PART_BYTES = 64 << 20


class OciBucket:
    """A bucket of the entry's region. Every method raises a task's error."""

    def __init__(self, entry: Access, namespace: str, name: str) -> None:
        scope = f"{entry.asker.scope} where target.bucket.name='{name}'"
        self._entry = dataclasses.replace(entry, asker=dataclasses.replace(entry.asker, scope=scope))
        self._client = self._entry.client(ObjectStorageClient)
        self._where, self._name = (namespace, name), name

    def sizes(self, prefix: str) -> dict[str, int]:
        """The bytes of each object below the prefix, but for what the console makes of the prefix itself."""
        asked = self._asked(f"listing bucket {self._name} of namespace {self._where[0]} in {self._entry.region}")
        found: dict[str, int] = {}
        start = ""
        while True:
            more = {"start": start} if start else {}
            page = self._entry.one(
                asked, self._client.list_objects, *self._where, prefix=prefix, fields="name,size", **more
            )
            for one in self._entry.of_kind(asked, page.get("objects"), list):
                found[self._entry.text(asked, self._entry.of_kind(asked, one, dict), "name")] = self._entry.read(
                    asked, _size, one
                )
            following = str(page.get("nextStartWith") or "")
            if not following:
                found.pop(prefix, None)
                return found
            if following <= start:  # names come in order
                raise RetryableError(f"{asked.doing}: the list has no end; the same again")
            start = following

    def has(self, name: str, path: Path, size: int | None) -> bool:
        """Whether an object of this listed size holds the file's bytes, by the service's own checksum; also OSError."""
        if size != path.stat().st_size:
            return False
        asked = self._asked(f"looking at {name}")
        headers = self._entry.response(asked, self._client.head_object, *self._where, name).headers
        found = headers.get("content-md5") or headers.get("opc-multipart-md5")
        return bool(found == checksum(path))

    def send(self, name: str, path: Path, say: Callable[[str], None]) -> None:
        """Also raises OSError."""
        if path.stat().st_size > PART_BYTES:
            return self._send_parts(name, path, say)
        content = path.read_bytes()
        asked, md5 = self._asked(f"sending {name}"), _text(_md5(content))
        answer = self._entry.response(
            asked, self._client.put_object, *self._where, name, _body(content), content_md5=md5
        )
        _confirm(name, answer.headers.get("opc-content-md5"), md5)
        return None

    def _send_parts(self, name: str, path: Path, say: Callable[[str], None]) -> None:
        asked = self._asked(f"sending {name}")
        upload = self._begun(name) or self._begin(name)
        listed = self._entry.all(asked, self._client.list_multipart_upload_parts, *self._where, name, upload)
        there = {self._entry.read(asked, _number, one): one for one in listed}
        tags: list[dict[str, object]] = []
        for number, content in enumerate(parts(path), start=1):
            md5, part = _text(_md5(content)), there.pop(number, {})
            tag = part.get("etag")
            if (part.get("md5"), part.get("size")) != (md5, len(content)):
                answer = self._entry.response(
                    asked,
                    self._client.upload_part,
                    *(*self._where, name, upload, number, _body(content)),
                    content_md5=md5,
                )
                _confirm(f"part {number} of {name}", answer.headers.get("opc-content-md5"), md5)
                tag = self._entry.text(asked, answer.headers, "etag")
                say(f"{name}: part {number} of {-(-path.stat().st_size // PART_BYTES)}")
            tags.append({"partNum": number, "etag": tag})
        whole = {"partsToCommit": tags, "partsToExclude": sorted(there)}
        answer = self._entry.response(asked, self._client.commit_multipart_upload, *self._where, name, upload, whole)
        _confirm(name, answer.headers.get("opc-multipart-md5"), checksum(path))

    def _begun(self, name: str) -> str | None:
        """The newest upload of this object that nobody has finished."""
        asked = self._asked("listing unfinished uploads", "read buckets")
        found = self._entry.all(asked, self._client.list_multipart_uploads, *self._where)
        ours = [one for one in found if one.get("object") == name]
        newest = max(ours, key=lambda one: str(one.get("timeCreated")), default=None)
        return None if newest is None else self._entry.text(asked, newest, "uploadId")

    def _begin(self, name: str) -> str:
        asked = self._asked(f"sending {name}")
        made = self._entry.one(asked, self._client.create_multipart_upload, *self._where, {"object": name})
        return self._entry.text(asked, made, "uploadId")

    def _asked(self, doing: str, right: str = "manage objects") -> ServiceCall:
        return ServiceCall(doing=doing, right=right)


def _size(one: Json) -> int:
    return int(one.get("size") or 0)


def _number(part: Json) -> int:
    return int(part["partNumber"])


def parts(path: Path) -> Iterator[bytes]:
    """What goes up at once. Raises OSError."""
    with path.open("rb") as file:
        while content := file.read(PART_BYTES):
            yield content


def checksum(path: Path) -> str:
    """As the service gives it: of a file in parts, the MD5 of their MD5s, and their number. Raises OSError."""
    each = [_md5(content) for content in parts(path)] or [_md5(b"")]
    return _text(each[0]) if len(each) == 1 else f"{_text(_md5(b''.join(each)))}-{len(each)}"


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _body(content: bytes) -> Any:
    """As a file, which is sent block by block: the SDK's deadline is for each. It cannot send an empty one."""
    return io.BytesIO(content) if content else content


def _confirm(what: str, found: str | None, expected: str) -> None:
    if found != expected:
        raise ConfirmationRequired(
            f"{what}: the bucket confirms MD5 {found}, not {expected}: a proxy or the file changed; look"
        )
