"""Tests of the module that a bucket's address selects."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from remote.providers import PROVIDERS
from tasks.adapter import push
from tasks.errors import UsageError
from tasks.settings.load import load


def push_to(target: str, context: Callable[..., Context]) -> None:
    trained: Any = SimpleNamespace(run=SimpleNamespace(run_id="r"))
    push._push_to_bucket(load(context()), trained, {}, target)


def test_the_scheme_of_a_bucket_selects_the_providers_module(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[str] = []

    def upload(_settings: object, target: str, *_: object) -> dict[str, object]:
        targets.append(target)
        return {"place": target, "sha256": {}}

    monkeypatch.setitem(sys.modules, PROVIDERS["oci"].buckets["oci"], SimpleNamespace(push=upload))
    monkeypatch.setattr(push, "_write_record", lambda *_: Path("record"))
    push_to("oci://bucket@namespace/prefix", context)
    assert targets == ["oci://bucket@namespace/prefix"]


@pytest.mark.parametrize("target", ["s3://bucket/prefix", "bucket", ""])
def test_another_scheme_is_refused_with_those_there_are(target: str, context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError) as caught:
        push_to(target, context)
    assert "oci://" in caught.value.remedy
