"""`inv image.bom`: the image that the documents describe."""

import json
from collections.abc import Callable

import pytest
from invoke import Context

from remote.image.references import parse_image_name, push_record_json
from tasks.image.sbom import _subject
from tasks.settings.load import load

LABELS = {"qlora-fleet.build": "b"}
FACTS = {"digest": "sha256:pushed", "size_bytes": 1, "compressed_bytes": 1, "labels": LABELS}


@pytest.mark.parametrize(
    ("recorded_id", "digest"),
    [("sha256:one", "sha256:pushed"), (None, "sha256:pushed"), ("sha256:before", "sha256:one")],
)
def test_a_rebuilt_image_is_not_the_pushed_one(
    context: Callable[..., Context], recorded_id: str | None, digest: str
) -> None:
    settings, reference = load(context()), parse_image_name("h.example/r:1", "x")
    record = json.loads(push_record_json(reference, {**FACTS, "image_id": recorded_id}, "2026-01-01T00:00:00+00:00"))
    settings.image_file.parent.mkdir(parents=True, exist_ok=True)
    settings.image_file.write_text(json.dumps(record))
    assert _subject(settings, "image:tag", "sha256:one", LABELS).digest == digest
