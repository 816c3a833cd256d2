"""Files below a prefix of a bucket. SHA256SUMS is sent last: without it, nobody takes what is there for whole.

What the bucket has whole is not sent again, so a second push of the same goes on, or finds nothing to do. A place with
anything else in it is refused: nothing is overwritten but what an unfinished push has left.

To import this raises UsageError where Oracle's SDK is not installed.
"""

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from tasks.errors import ConfirmationRequired, UsageError
from tasks.oci.access.errors import NotFound
from tasks.oci.access.optional_sdk import needs_sdk
from tasks.settings.load import Settings

with needs_sdk():
    from tasks.oci.access.clients import Access, access, namespace_of
    from tasks.oci.storage.bucket import OciBucket

FORM = "oci://BUCKET@NAMESPACE/PREFIX"
_PLACE = re.compile(
    r"oci://(?P<bucket>[\w.-]+)(@(?P<namespace>[\w-]+))?(/(?P<prefix>[\w.-]+(/[\w.-]+)*)?/?)?", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class BucketAddress:
    """Where files go; a namespace of None is the tenancy's own."""

    bucket: str
    namespace: str | None
    prefix: str

    def name(self, file: str) -> str:
        return f"{self.prefix}/{file}"


def place_of(text: str, otherwise: str) -> BucketAddress:
    """A place as Oracle's tools write it; without a prefix, below `otherwise`. Raises UsageError."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise UsageError(f"adapter.push: --bucket: expected {FORM}, found {text[:120]!r}")
    return BucketAddress(bucket=found["bucket"], namespace=found["namespace"], prefix=found["prefix"] or otherwise)


def push(
    settings: Settings, text: str, otherwise: str, files: Mapping[str, Path], say: Callable[[str], None]
) -> dict[str, object]:
    """Send what is missing; where the files are, and each one's sha256. Raises a task's error and OSError."""
    place = place_of(text, otherwise)
    entry = access(settings)
    namespace = place.namespace or namespace_of(entry)
    bucket = OciBucket(entry, namespace, place.bucket)
    digests = {name: sha256_of(path) for name, path in sorted(files.items()) if name != SUMS_FILE}
    with tempfile.TemporaryDirectory() as scratch:
        sums = Path(scratch, SUMS_FILE)
        sums.write_text("".join(f"{sha256}  {name}\n" for name, sha256 in digests.items()), encoding="utf-8")
        paths = {place.name(name): files[name] for name in digests} | {place.name(SUMS_FILE): sums}
        there = _there(entry, bucket, place)
        _refuse_others(bucket, place, there, paths, sums)
        if _send(bucket, there, paths, say):
            _verify(bucket, place, paths)
    return {"place": f"oci://{place.bucket}@{namespace}/{place.prefix}", "region": entry.region, "sha256": digests}


def _there(entry: Access, bucket: OciBucket, place: BucketAddress) -> dict[str, int]:
    try:
        return bucket.sizes(f"{place.prefix}/")
    except NotFound as error:
        own = namespace_of(entry)
        if place.namespace in (None, own):
            raise
        raise UsageError(f"{error}; {place.namespace} is not this tenancy's namespace, which is {own}") from None


def _refuse_others(
    bucket: OciBucket, place: BucketAddress, there: Mapping[str, int], paths: Mapping[str, Path], sums: Path
) -> None:
    other = sorted(there.keys() - paths.keys())
    advice = "name another prefix, or empty this one"
    if other:
        raise UsageError(f"adapter.push: --bucket: {place.prefix}/ holds other objects, such as {other[0]!r}; {advice}")
    whole = place.name(SUMS_FILE)
    if whole in there and not bucket.has(whole, sums, there[whole]):
        raise UsageError(f"adapter.push: --bucket: {place.prefix}/ holds another version, by its {SUMS_FILE}; {advice}")


def _send(bucket: OciBucket, there: Mapping[str, int], paths: Mapping[str, Path], say: Callable[[str], None]) -> int:
    sent = 0
    for name, path in paths.items():
        size = f"{path.stat().st_size / 1e6:,.1f} MB"
        if bucket.has(name, path, there.get(name)):
            say(f"{name}, {size}: is there already")
            continue
        bucket.send(name, path, say)
        say(f"{name}, {size}: sent")
        sent += 1
    return sent


def _verify(bucket: OciBucket, place: BucketAddress, paths: Mapping[str, Path]) -> None:
    """Raises Refused where the bucket does not list these very files with their sizes and checksums."""
    there = bucket.sizes(f"{place.prefix}/")
    wrong = sorted(there.keys() - paths.keys()) or [
        name for name, path in paths.items() if not bucket.has(name, path, there.get(name))
    ]
    if wrong:
        raise ConfirmationRequired(
            f"{wrong[0]!r} is not in the bucket as it was sent; somebody else writes to {place.prefix}/: look"
        )
