"""Object Storage for tests, behind `FakeTenancy`: objects, their parts, lists in pages, MD5 held and confirmed.

The caller has verified who asks. `rots` names objects of which one byte changes after they were taken. Not covered:
versions, tiers, retention rules, encryption, conditional requests.
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
Answer = tuple[int, bytes, Headers]


class Wrong(Exception):
    """An error of the service: status, code, message."""


@dataclass(kw_only=True)
class Upload:
    bucket: str
    name: str
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class Buckets:
    """What is stored; tests read and change it."""

    objects: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"adapters": {}})
    checksums: dict[tuple[str, str], str] = field(default_factory=dict)  # of objects that came in parts
    uploads: dict[str, Upload] = field(default_factory=dict)
    rots: set[str] = field(default_factory=set)

    def answer(
        self, method: str, path: str, query: Mapping[str, list[str]], body: bytes, headers: Mapping[str, str], page: int
    ) -> Answer | None:
        """For what is below a bucket; None for what is not. Raises Wrong."""
        found = re.fullmatch(r"/n/([^/]+)/b/([^/]+)/([ou])(?:/(.+))?", path)
        if found is None:
            return None
        namespace, bucket, kind, name = found.groups()
        for known, code in ((namespace == NAMESPACE, "NamespaceNotFound"), (bucket in self.objects, "BucketNotFound")):
            if not known:
                raise Wrong(404, code, f"Either the bucket named '{bucket}' does not exist in the namespace "
                            f"'{namespace}' or you are not authorized to access it")  # fmt: skip
        act = getattr(self, f"_{method.lower()}_{'object' if kind == 'o' else 'upload'}{'' if name else 's'}", None)
        if act is None:
            raise Wrong(405, "MethodNotAllowed", f"{method} {path}")
        answer: Answer = act(bucket, name, {key: values[0] for key, values in query.items()}, body, headers, page)
        return answer

    def _get_objects(
        self, bucket: str, _name: None, query: Mapping[str, str], _body: bytes, _headers: object, page: int
    ) -> Answer:
        names = sorted(one for one in self.objects[bucket] if one.startswith(query.get("prefix", "")))
        names = [name for name in names if name >= query.get("start", "")]
        fields = query.get("fields", "name").split(",")
        assert set(fields) <= {"name", "size"}
        listed = [{"name": name, "size": len(self.objects[bucket][name])} for name in names[:page]]
        more = {"nextStartWith": names[page]} if len(names) > page else {}
        return _json({"objects": [{key: one[key] for key in fields} for one in listed], **more})

    def _get_object(self, bucket: str, name: str, *_: object) -> Answer:
        content = self._stored(bucket, name)
        checksum = self.checksums.get((bucket, name))
        held = {"opc-multipart-md5": checksum} if checksum else {"content-md5": _text(_md5(content))}
        return 200, content, {"etag": _text(_md5(content)), **held}

    _head_object = _get_object

    def _put_object(
        self, bucket: str, name: str, _query: object, body: bytes, headers: Mapping[str, str], _page: int
    ) -> Answer:
        md5 = _held(body, headers)
        self.checksums.pop((bucket, name), None)
        self._store(bucket, name, body)
        return 200, b"", {"etag": md5, "opc-content-md5": md5}

    def _post_uploads(self, bucket: str, _name: None, _query: object, body: bytes, *_: object) -> Answer:
        upload = f"upload-{len(self.uploads)}"
        self.uploads[upload] = Upload(bucket=bucket, name=json.loads(body)["object"])
        return _json(self._shown(upload))

    def _get_uploads(
        self, bucket: str, _name: None, query: Mapping[str, str], _body: bytes, _headers: object, page: int
    ) -> Answer:
        return _paged(
            [self._shown(upload) for upload in self.uploads if self.uploads[upload].bucket == bucket], query, page
        )

    def _put_upload(
        self, bucket: str, name: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str], _page: int
    ) -> Answer:
        md5 = _held(body, headers)
        self._open(bucket, name, query).parts[int(query["uploadPartNum"])] = body
        return 200, b"", {"etag": f"tag of {md5}", "opc-content-md5": md5}

    def _get_upload(
        self, bucket: str, name: str, query: Mapping[str, str], _body: bytes, _headers: object, page: int
    ) -> Answer:
        listed = []
        for number, content in sorted(self._open(bucket, name, query).parts.items()):
            md5 = _text(_md5(content))
            listed.append({"partNumber": number, "size": len(content), "md5": md5, "etag": f"tag of {md5}"})
        return _paged(listed, query, page)

    def _post_upload(self, bucket: str, name: str, query: Mapping[str, str], body: bytes, *_: object) -> Answer:
        there, asked = self._open(bucket, name, query).parts, json.loads(body)
        chosen = [int(one["partNum"]) for one in asked["partsToCommit"]]
        tags = {number: f"tag of {_text(_md5(content))}" for number, content in there.items()}
        if any(tags.get(int(one["partNum"])) != one["etag"] for one in asked["partsToCommit"]):
            raise Wrong(400, "InvalidUploadPart", "There are parts that were never uploaded, or others.")
        if chosen != sorted(chosen) or set(there) != {*chosen, *asked["partsToExclude"]}:
            raise Wrong(400, "InvalidUploadPart", "Each part is committed or excluded.")
        del self.uploads[query["uploadId"]]
        self._store(bucket, name, b"".join(there[number] for number in chosen))
        checksum = f"{_text(_md5(b''.join(_md5(there[number]) for number in chosen)))}-{len(chosen)}"
        self.checksums[(bucket, name)] = checksum
        return 200, b"", {"etag": checksum, "opc-multipart-md5": checksum}

    def _stored(self, bucket: str, name: str) -> bytes:
        if name not in self.objects[bucket]:
            raise Wrong(404, "ObjectNotFound", f"The object '{name}' was not found in the bucket '{bucket}'")
        return self.objects[bucket][name]

    def _store(self, bucket: str, name: str, content: bytes) -> None:
        self.objects[bucket][name] = content[:-1] + b"?" if name in self.rots else content

    def _open(self, bucket: str, name: str, query: Mapping[str, str]) -> Upload:
        upload = self.uploads.get(query["uploadId"])
        if upload is None or (upload.bucket, upload.name) != (bucket, name):
            raise Wrong(404, "NoSuchUpload", "The upload ID is not known.")
        return upload

    def _shown(self, upload: str) -> dict[str, Any]:
        one = self.uploads[upload]
        return {"uploadId": upload, "object": one.name, "bucket": one.bucket, "timeCreated": upload}


def _held(body: bytes, headers: Mapping[str, str]) -> str:
    md5 = _text(_md5(body))
    if headers.get("content-md5") != md5:
        raise Wrong(400, "UnmatchedContentMD5", f"The body has MD5 {md5}, not the one in the header.")
    return md5


def _json(value: object) -> Answer:
    return 200, json.dumps(value).encode(), {}


def _paged(listed: list[Any], query: Mapping[str, str], page: int) -> Answer:
    start = int(query.get("page", "0"))
    more = {"opc-next-page": str(start + page)} if start + page < len(listed) else {}
    return 200, json.dumps(listed[start : start + page]).encode(), more


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
