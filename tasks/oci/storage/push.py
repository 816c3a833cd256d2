"""Push files below a prefix of a bucket. SHA256SUMS is sent last, so that its absence marks an incomplete push.

A second push sends only what is missing. A prefix with other objects is refused: only objects of an unfinished push
are overwritten.

Importing this module raises UsageError if Oracle's SDK is not installed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from bench.records.scratch_folders import scratch_folder
from tasks.errors import ConfirmationRequired, UsageError
from tasks.oci.access.errors import ApiNotFound
from tasks.oci.access.optional_sdk import require_sdk
from tasks.settings.load import Settings

with require_sdk():
    from tasks.oci.access.clients import TenancyApi, connect, get_namespace
    from tasks.oci.storage.bucket import OciBucket

ADDRESS_FORMAT = "oci://BUCKET@NAMESPACE/PREFIX"
_ADDRESS_PATTERN = re.compile(
    r"oci://(?P<bucket>[\w.-]+)(@(?P<namespace>[\w-]+))?(/(?P<prefix>[\w.-]+(/[\w.-]+)*)?/?)?", re.ASCII
)


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
        size = f"{path.stat().st_size / 1e6:,.1f} MB"
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
