"""Uploads to a bucket of Object Storage, each confirmed by the service.

Each upload has its MD5 in a header: the service rejects other bytes and returns the MD5 of what it stored. A file
larger than PART_BYTES is uploaded in parts. The bucket stores uploaded parts until the file is complete, so that a
killed push resumes. SHA256SUMS is sent last, so that its absence marks an incomplete push. A second push sends only
what is missing. A prefix with other objects is refused: only objects of an unfinished push are overwritten.

Importing this module raises UsageError if Oracle's SDK is not installed.
"""

import base64
import dataclasses
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from bench.records.scratch_folders import scratch_folder
from bench.records.units import format_mb
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.oci import require_sdk
from tasks.oci.api_errors import ApiNotFound, Operation
from tasks.settings.load import Settings

with require_sdk():
    from oci.object_storage import ObjectStorageClient

    from tasks.oci.clients import TenancyApi, connect, get_namespace

PART_BYTES = 64 << 20
ADDRESS_FORMAT = "oci://BUCKET@NAMESPACE/PREFIX"
_ADDRESS_PATTERN = re.compile(
    r"oci://(?P<bucket>[\w.-]+)(@(?P<namespace>[\w-]+))?(/(?P<prefix>[\w.-]+(/[\w.-]+)*)?/?)?", re.ASCII
)


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
                    self._api.parse(operation, lambda fields: int(fields.get("size") or 0), item)
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
        uploaded = {self._api.parse(operation, lambda fields: int(fields["partNumber"]), part): part for part in parts}
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


# --- push -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BucketAddress:
    """Target of a push; namespace None is the tenancy's own."""

    bucket: str
    namespace: str | None
    prefix: str

    def object_name(self, file: str) -> str:
        return f"{self.prefix}/{file}"


def parse_address(text: str, default_prefix: str) -> BucketAddress:
    """Parse an address in the format of Oracle's tools; the prefix is optional. Raises UsageError."""
    match = _ADDRESS_PATTERN.fullmatch(text)
    if match is None:
        raise UsageError(f"adapter.push: --bucket: expected {ADDRESS_FORMAT}, found {text[:120]!r}")
    return BucketAddress(bucket=match["bucket"], namespace=match["namespace"], prefix=match["prefix"] or default_prefix)


def push(
    settings: Settings, text: str, default_prefix: str, files: Mapping[str, Path], log: Callable[[str], None]
) -> dict[str, object]:
    """Upload the missing files; return their address and sha256 digests. Raises a task's error and OSError."""
    address = parse_address(text, default_prefix)
    api = connect(settings)
    namespace = address.namespace or get_namespace(api)
    bucket = OciBucket(api, namespace, address.bucket)
    digests = {name: sha256_of(path) for name, path in sorted(files.items()) if name != SUMS_FILE}
    with scratch_folder("qlora-fleet-adapter-") as temporary:
        sums = temporary / SUMS_FILE
        sums.write_text("".join(f"{sha256}  {name}\n" for name, sha256 in digests.items()), encoding="utf-8")
        paths = {address.object_name(name): files[name] for name in digests} | {address.object_name(SUMS_FILE): sums}
        existing = _list_objects(api, bucket, address)
        _check_no_other_objects(bucket, address, existing, paths, sums)
        if _upload_missing(bucket, existing, paths, log):
            _verify(bucket, address, paths)
    return {"place": f"oci://{address.bucket}@{namespace}/{address.prefix}", "region": api.region, "sha256": digests}


def _list_objects(api: TenancyApi, bucket: OciBucket, address: BucketAddress) -> dict[str, int]:
    try:
        return bucket.list_sizes(f"{address.prefix}/")
    except ApiNotFound as error:
        own_namespace = get_namespace(api)
        if address.namespace in (None, own_namespace):
            raise
        raise UsageError.from_error(
            error, remedy=f"{address.namespace} is not this tenancy's namespace, which is {own_namespace}"
        ) from error


def _check_no_other_objects(
    bucket: OciBucket, address: BucketAddress, existing: Mapping[str, int], paths: Mapping[str, Path], sums: Path
) -> None:
    others = sorted(existing.keys() - paths.keys())
    remedy = "choose another prefix, or empty this one"
    if others:
        raise UsageError(
            f"adapter.push: --bucket: {address.prefix}/ contains other objects, such as {others[0]!r}", remedy=remedy
        )
    sums_object = address.object_name(SUMS_FILE)
    if sums_object in existing and not bucket.has(sums_object, sums, existing[sums_object]):
        raise UsageError(
            f"adapter.push: --bucket: {address.prefix}/ contains another version according to its {SUMS_FILE}",
            remedy=remedy,
        )


def _upload_missing(
    bucket: OciBucket, existing: Mapping[str, int], paths: Mapping[str, Path], log: Callable[[str], None]
) -> int:
    sent = 0
    for name, path in paths.items():
        size = format_mb(path.stat().st_size)
        if bucket.has(name, path, existing.get(name)):
            log(f"{name}, {size}: already there")
            continue
        bucket.upload(name, path, log)
        log(f"{name}, {size}: sent")
        sent += 1
    return sent


def _verify(bucket: OciBucket, address: BucketAddress, paths: Mapping[str, Path]) -> None:
    """Check that the bucket lists exactly these files with their sizes and checksums. Raises ConfirmationRequired."""
    existing = bucket.list_sizes(f"{address.prefix}/")
    mismatches = sorted(existing.keys() - paths.keys()) or [
        name for name, path in paths.items() if not bucket.has(name, path, existing.get(name))
    ]
    if mismatches:
        raise ConfirmationRequired(
            f"{mismatches[0]!r}: checksum mismatch after upload",
            remedy=f"check whether another writer uses {address.prefix}/",
        )
