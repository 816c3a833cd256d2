"""Reference of the image that pods run, by its digest."""

import json
from typing import Any

from bench.records.atomic_files import read_regular
from remote.cluster.manifests import Image
from tasks.errors import UsageError
from tasks.settings.load import Settings

_MAX_RECORD_BYTES = 1 << 20


def read_push_record(settings: Settings) -> Any:
    """Parse the record of the last `inv push`. Raises OSError and ValueError."""
    try:
        return json.loads(read_regular(settings.image_file, max_bytes=_MAX_RECORD_BYTES))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def resolve_image(settings: Settings) -> Image:
    """Return the image to run: cluster.image, else the last pushed one. Raises UsageError, also without a digest."""
    if settings.cluster.image is not None:
        try:
            return Image.parse(settings.cluster.image)
        except ValueError as error:
            raise UsageError(
                f"cluster.image: {error}, and a tag can move under running pods",
                remedy="write HOST/REPOSITORY@sha256:..., as `inv push` prints it",
            ) from error
    path = settings.image_file
    try:
        pushed = read_push_record(settings)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path}: no such file", remedy="`inv push` writes it, or set cluster.image to HOST/REPOSITORY@sha256:..."
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy="`inv push` rewrites it") from error
    try:
        sizes = [pushed.get(key) for key in ("size_bytes", "compressed_bytes")]
        size = sum(sizes) if all(type(size) is int and 0 <= size < 1 << 63 for size in sizes) else None
        requires = pushed.get("requires")
        reference = f"{pushed['repository']}@{pushed['digest']}"
        return Image.parse(reference, size, requires if isinstance(requires, str) else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: not a record of `inv push` ({error})", remedy="`inv push` rewrites it") from error
