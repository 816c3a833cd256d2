"""One bucket of Object Storage: list objects, upload files with checksums confirmed by the service.

Each upload has its MD5 in a header: the service rejects other bytes and returns the MD5 of what it stored. A file
larger than PART_BYTES is uploaded in parts. The bucket stores uploaded parts until the file is complete, so that a
killed push resumes.
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
from tasks.oci.access.clients import Json, TenancyApi
from tasks.oci.access.errors import Operation

PART_BYTES = 64 << 20


class OciBucket:
    """A bucket in the API's region. Every method raises a task's error."""

    def __init__(self, api: TenancyApi, namespace: str, name: str) -> None:
        scope = f"{api.caller.scope} where target.bucket.name='{name}'"
        self._api = dataclasses.replace(api, caller=dataclasses.replace(api.caller, scope=scope))
        self._client = self._api.client(ObjectStorageClient)
        self._address, self._name = (namespace, name), name

    def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of each object below the prefix, without the console's object for the prefix itself."""
        operation = self._operation(
            f"listing bucket {self._name} of namespace {self._address[0]} in {self._api.region}"
        )
        sizes: dict[str, int] = {}
        start = ""
        while True:
            parameters = {"start": start} if start else {}
            page = self._api.get_object(
                operation, self._client.list_objects, *self._address, prefix=prefix, fields="name,size", **parameters
            )
            for item in self._api.check_type(operation, page.get("objects"), list):
                sizes[self._api.text_field(operation, self._api.check_type(operation, item, dict), "name")] = (
                    self._api.parse(operation, _size, item)
                )
            next_start = str(page.get("nextStartWith") or "")
            if not next_start:
                sizes.pop(prefix, None)
                return sizes
            if next_start <= start:  # names are listed in order
                raise RetryableError(f"{operation.action}: pagination does not advance", remedy="retry")
            start = next_start

    def has(self, name: str, path: Path, size: int | None) -> bool:
        """Return whether the object, of this listed size, has the file's checksum. Also raises OSError."""
        if size != path.stat().st_size:
            return False
        operation = self._operation(f"reading {name}")
        headers = self._api.call(operation, self._client.head_object, *self._address, name).headers
        listed_md5 = headers.get("content-md5") or headers.get("opc-multipart-md5")
        return bool(listed_md5 == checksum(path))

    def upload(self, name: str, path: Path, log: Callable[[str], None]) -> None:
        """Upload a file. Also raises OSError."""
        if path.stat().st_size > PART_BYTES:
            return self._upload_parts(name, path, log)
        content = path.read_bytes()
        operation, md5 = self._operation(f"sending {name}"), _base64(_md5(content))
        response = self._api.call(
            operation, self._client.put_object, *self._address, name, _body(content), content_md5=md5
        )
        _check_confirmation(name, response.headers.get("opc-content-md5"), md5)
        return None

    def _upload_parts(self, name: str, path: Path, log: Callable[[str], None]) -> None:
        operation = self._operation(f"sending {name}")
        upload_id = self._unfinished_upload(name) or self._create_upload(name)
        parts = self._api.list_all(operation, self._client.list_multipart_upload_parts, *self._address, name, upload_id)
        uploaded = {self._api.parse(operation, _part_number, part): part for part in parts}
        tags: list[dict[str, object]] = []
        for number, content in enumerate(read_parts(path), start=1):
            md5, uploaded_part = _base64(_md5(content)), uploaded.pop(number, {})
            tag = uploaded_part.get("etag")
            if (uploaded_part.get("md5"), uploaded_part.get("size")) != (md5, len(content)):
                response = self._api.call(
                    operation,
                    self._client.upload_part,
                    *(*self._address, name, upload_id, number, _body(content)),
                    content_md5=md5,
                )
                _check_confirmation(f"part {number} of {name}", response.headers.get("opc-content-md5"), md5)
                tag = self._api.text_field(operation, response.headers, "etag")
                log(f"{name}: part {number} of {-(-path.stat().st_size // PART_BYTES)}")
            tags.append({"partNum": number, "etag": tag})
        details = {"partsToCommit": tags, "partsToExclude": sorted(uploaded)}
        response = self._api.call(
            operation, self._client.commit_multipart_upload, *self._address, name, upload_id, details
        )
        _check_confirmation(name, response.headers.get("opc-multipart-md5"), checksum(path))

    def _unfinished_upload(self, name: str) -> str | None:
        """Return the id of the object's newest unfinished upload, or None."""
        operation = self._operation("listing unfinished uploads", "read buckets")
        uploads = self._api.list_all(operation, self._client.list_multipart_uploads, *self._address)
        matching = [upload for upload in uploads if upload.get("object") == name]
        newest = max(matching, key=lambda upload: str(upload.get("timeCreated")), default=None)
        return None if newest is None else self._api.text_field(operation, newest, "uploadId")

    def _create_upload(self, name: str) -> str:
        operation = self._operation(f"sending {name}")
        upload = self._api.get_object(operation, self._client.create_multipart_upload, *self._address, {"object": name})
        return self._api.text_field(operation, upload, "uploadId")

    def _operation(self, action: str, permission: str = "manage objects") -> Operation:
        return Operation(action=action, permission=permission)


def _size(item: Json) -> int:
    return int(item.get("size") or 0)


def _part_number(part: Json) -> int:
    return int(part["partNumber"])


def read_parts(path: Path) -> Iterator[bytes]:
    """Yield the file's content in parts of PART_BYTES. Raises OSError."""
    with path.open("rb") as file:
        while content := file.read(PART_BYTES):
            yield content


def checksum(path: Path) -> str:
    """Compute the MD5 as Object Storage does; for a file in parts, MD5 of the parts' MD5s and their number.

    Raises OSError.
    """
    digests = [_md5(content) for content in read_parts(path)] or [_md5(b"")]
    return _base64(digests[0]) if len(digests) == 1 else f"{_base64(_md5(b''.join(digests)))}-{len(digests)}"


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _body(content: bytes) -> Any:
    """Wrap the content as a file, so that the SDK's timeout applies to each block; it cannot send an empty file."""
    return io.BytesIO(content) if content else content


def _check_confirmation(name: str, confirmed: str | None, expected: str) -> None:
    if confirmed != expected:
        raise ConfirmationRequired(
            f"{name}: the bucket confirms MD5 {confirmed}, not {expected}: a proxy changed the data, or the file "
            "changed",
            remedy="check them, then retry",
        )
