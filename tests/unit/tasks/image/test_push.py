"""`inv push` where the registry has no such repository."""

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from remote.image.references import reference
from tasks.image import push
from tasks.settings.load import load


def test_a_push_that_finds_no_repository_offers_the_command_that_makes_it(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself is tried in tests/unit/tasks/oci; here it is only typed."""
    asked: list[str] = []
    typed: list[tuple[tuple[str, ...], str]] = []

    def run(argv: tuple[str, ...], **options: Any) -> SimpleNamespace:
        typed.append((argv, options["env"]["INVOKE_REGISTRY_IMAGE"]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(push, "asks", lambda question: bool(asked.append(question)) or len(asked) > 1)
    monkeypatch.setattr(subprocess, "run", run)
    settings, where = load(context()), reference("fra.ocir.io/ns/new:1", "x")
    assert not push.repository_made(settings, where)  # no
    assert typed == []
    assert push.repository_made(settings, where)  # yes
    ((argv, image),) = typed
    assert (argv[1:], image) == (("-m", "invoke", "tenancy.repository"), "fra.ocir.io/ns/new:1")
    assert not push.repository_made(settings, reference("docker.io/me/new:1", "x"))  # none of the tenancy's
    assert asked == ["fra.ocir.io/ns/new may not be there. `inv tenancy.repository` now?"] * 2
