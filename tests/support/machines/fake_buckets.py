"""Fake Object Storage behind `FakeTenancy`: objects, multipart uploads, pagination, MD5 checked and confirmed.

The caller has verified the request's signature. `corrupted` names objects of which one byte changes after the upload.
Not covered: versions, tiers, retention rules, encryption, conditional requests.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "axns"
Headers = dict[str, str]
Response = tuple[int, bytes, Headers]


class ServiceError(Exception):
    """Error response of the service, with status, code and message as arguments."""


@dataclass(kw_only=True)
class Upload:
    bucket: str
    name: str
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class Buckets:
    """Stored objects and uploads; tests read and change them."""

    objects: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"adapters": {}})
    multipart_checksums: dict[tuple[str, str], str] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    corrupted: set[str] = field(default_factory=set)

    def respond(
        self, method: str, path: str, query: Mapping[str, list[str]], body: bytes, headers: Mapping[str, str], page: int
    ) -> Response | None:
        """Return the response to a request below a bucket, None for other paths. Raises ServiceError."""
        match = re.fullmatch(r"/n/([^/]+)/b/([^/]+)/([ou])(?:/(.+))?", path)
        if match is None:
            return None
        namespace, bucket, kind, name = match.groups()
        for known, code in ((namespace == NAMESPACE, "NamespaceNotFound"), (bucket in self.objects, "BucketNotFound")):
            if not known:
                raise ServiceError(404, code, f"Either the bucket named '{bucket}' does not exist in the namespace "
                            f"'{namespace}' or you are not authorized to access it")  # fmt: skip
        handler = getattr(self, f"_{method.lower()}_{'object' if kind == 'o' else 'upload'}{'' if name else 's'}", None)
        if handler is None:
            raise ServiceError(405, "MethodNotAllowed", f"{method} {path}")
        response: Response = handler(
            bucket, name, {key: values[0] for key, values in query.items()}, body, headers, page
        )
        return response

    def _get_objects(
        self, bucket: str, _name: None, query: Mapping[str, str], _body: bytes, _headers: object, page: int
    ) -> Response:
        names = sorted(name for name in self.objects[bucket] if name.startswith(query.get("prefix", "")))
        names = [name for name in names if name >= query.get("start", "")]
        fields = query.get("fields", "name").split(",")
        assert set(fields) <= {"name", "size"}
        items = [{"name": name, "size": len(self.objects[bucket][name])} for name in names[:page]]
        more = {"nextStartWith": names[page]} if len(names) > page else {}
        return _json({"objects": [{key: item[key] for key in fields} for item in items], **more})

    def _get_object(self, bucket: str, name: str, *_: object) -> Response:
        content = self._get_content(bucket, name)
        checksum = self.multipart_checksums.get((bucket, name))
        md5_header = {"opc-multipart-md5": checksum} if checksum else {"content-md5": _base64(_md5(content))}
        return 200, content, {"etag": _base64(_md5(content)), **md5_header}

    _head_object = _get_object

    def _put_object(
        self, bucket: str, name: str, _query: object, body: bytes, headers: Mapping[str, str], _page: int
    ) -> Response:
        md5 = _check_md5(body, headers)
        self.multipart_checksums.pop((bucket, name), None)
        self._store(bucket, name, body)
        return 200, b"", {"etag": md5, "opc-content-md5": md5}

    def _post_uploads(self, bucket: str, _name: None, _query: object, body: bytes, *_: object) -> Response:
        upload = f"upload-{len(self.uploads)}"
        self.uploads[upload] = Upload(bucket=bucket, name=json.loads(body)["object"])
        return _json(self._upload_json(upload))

    def _get_uploads(
        self, bucket: str, _name: None, query: Mapping[str, str], _body: bytes, _headers: object, page: int
    ) -> Response:
        return _paged(
            [self._upload_json(upload) for upload in self.uploads if self.uploads[upload].bucket == bucket], query, page
        )

    def _put_upload(
        self, bucket: str, name: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str], _page: int
    ) -> Response:
        md5 = _check_md5(body, headers)
        self._get_open_upload(bucket, name, query).parts[int(query["uploadPartNum"])] = body
        return 200, b"", {"etag": f"tag of {md5}", "opc-content-md5": md5}

    def _get_upload(
        self, bucket: str, name: str, query: Mapping[str, str], _body: bytes, _headers: object, page: int
    ) -> Response:
        listed = []
        for number, content in sorted(self._get_open_upload(bucket, name, query).parts.items()):
            md5 = _base64(_md5(content))
            listed.append({"partNumber": number, "size": len(content), "md5": md5, "etag": f"tag of {md5}"})
        return _paged(listed, query, page)

    def _post_upload(self, bucket: str, name: str, query: Mapping[str, str], body: bytes, *_: object) -> Response:
        parts, request = self._get_open_upload(bucket, name, query).parts, json.loads(body)
        chosen = [int(part["partNum"]) for part in request["partsToCommit"]]
        tags = {number: f"tag of {_base64(_md5(content))}" for number, content in parts.items()}
        if any(tags.get(int(part["partNum"])) != part["etag"] for part in request["partsToCommit"]):
            raise ServiceError(400, "InvalidUploadPart", "There are parts that were never uploaded, or others.")
        if chosen != sorted(chosen) or set(parts) != {*chosen, *request["partsToExclude"]}:
            raise ServiceError(400, "InvalidUploadPart", "Each part is committed or excluded.")
        del self.uploads[query["uploadId"]]
        self._store(bucket, name, b"".join(parts[number] for number in chosen))
        checksum = f"{_base64(_md5(b''.join(_md5(parts[number]) for number in chosen)))}-{len(chosen)}"
        self.multipart_checksums[(bucket, name)] = checksum
        return 200, b"", {"etag": checksum, "opc-multipart-md5": checksum}

    def _get_content(self, bucket: str, name: str) -> bytes:
        if name not in self.objects[bucket]:
            raise ServiceError(404, "ObjectNotFound", f"The object '{name}' was not found in the bucket '{bucket}'")
        return self.objects[bucket][name]

    def _store(self, bucket: str, name: str, content: bytes) -> None:
        self.objects[bucket][name] = content[:-1] + b"?" if name in self.corrupted else content

    def _get_open_upload(self, bucket: str, name: str, query: Mapping[str, str]) -> Upload:
        upload = self.uploads.get(query["uploadId"])
        if upload is None or (upload.bucket, upload.name) != (bucket, name):
            raise ServiceError(404, "NoSuchUpload", "The upload ID is not known.")
        return upload

    def _upload_json(self, upload_id: str) -> dict[str, Any]:
        upload = self.uploads[upload_id]
        return {"uploadId": upload_id, "object": upload.name, "bucket": upload.bucket, "timeCreated": upload_id}


def _check_md5(body: bytes, headers: Mapping[str, str]) -> str:
    md5 = _base64(_md5(body))
    if headers.get("content-md5") != md5:
        raise ServiceError(400, "UnmatchedContentMD5", f"The body has MD5 {md5}, not the one in the header.")
    return md5


def _json(value: object) -> Response:
    return 200, json.dumps(value).encode(), {}


def _paged(listed: list[Any], query: Mapping[str, str], page: int) -> Response:
    start = int(query.get("page", "0"))
    more = {"opc-next-page": str(start + page)} if start + page < len(listed) else {}
    return 200, json.dumps(listed[start : start + page]).encode(), more


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
