"""The image that pods run, and invalid records of a push, which other users may write."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.cluster.manifests import Image
from remote.cluster.settings import ClusterSection
from tasks.clients.registry import resolve_image
from tasks.errors import UsageError
from tasks.settings.layers import Settings

PUSHED = {
    "schema_version": 2,
    "version": "2.0.0",
    "repository": "h.example/r",
    "digest": f"sha256:{'a' * 64}",
    "size_bytes": 5,
    "compressed_bytes": 7,
}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.unlink(missing_ok=True), "no such file"),
        (lambda path: path.write_text("{"), "Expecting property name"),
        (lambda path: path.write_text(json.dumps(PUSHED | {"digest": "latest"})), "not a record"),
        (lambda path: path.write_bytes(b"\xff"), "codec can't decode"),
        (lambda path: path.write_bytes(b" " * (1 << 20 | 1)), "1,048,576 bytes"),
        (os.mkfifo, "regular file"),
    ],
)
def test_a_record_that_cannot_be_read_is_one_line(make: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    settings = Settings(root=tmp_path)
    settings.image_file.parent.mkdir(parents=True)
    make(settings.image_file)
    with pytest.raises(UsageError, match=f"{settings.image_file}: .*{problem}.*; `inv push`"):
        resolve_image(settings)


def resolved(folder: Path, image: str | None = None, **changes: object) -> Image:
    settings = Settings(root=folder, cluster=ClusterSection(image=image))
    settings.image_file.parent.mkdir(parents=True)
    settings.image_file.write_text(json.dumps(PUSHED | changes))
    return resolve_image(settings)


def test_a_push_of_1_x_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r" 1\.x; .*; `inv push` rewrites it"):
        resolved(tmp_path, version="1.0.0")


@pytest.mark.parametrize(("size", "known"), [(5, 12), (10**400, None), (-1, None), (True, None), (None, None)])
def test_the_image_is_the_one_that_was_pushed_and_an_invalid_size_is_unknown(
    size: object, known: int | None, tmp_path: Path
) -> None:
    image = resolved(tmp_path, size_bytes=size)
    assert (image.reference, image.size_bytes) == (f"h.example/r@{PUSHED['digest']}", known)


def test_the_image_of_the_settings_is_taken_first_and_needs_its_digest(tmp_path: Path) -> None:
    assert resolved(tmp_path, image=f"h/other@{PUSHED['digest']}").repository == "h/other"
    with pytest.raises(UsageError, match=r"cluster\.image: .*@sha256:"):
        resolve_image(Settings(root=tmp_path, cluster=ClusterSection(image="fra.ocir.io/ns/r:1.0")))
