"""`inv push` to a repository that does not exist."""

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from remote.image.references import parse_image_name
from tasks.image import push
from tasks.settings.load import load


def test_a_push_that_finds_no_repository_offers_the_command_that_makes_it(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself is tested in tests/unit/tasks/oci; here subprocess.run is replaced."""
    questions: list[str] = []
    started: list[tuple[tuple[str, ...], str]] = []

    def run(argv: tuple[str, ...], **options: Any) -> SimpleNamespace:
        started.append((argv, options["env"]["INVOKE_REGISTRY_IMAGE"]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(push, "confirm", lambda question: bool(questions.append(question)) or len(questions) > 1)
    monkeypatch.setattr(subprocess, "run", run)
    settings, reference = load(context()), parse_image_name("fra.ocir.io/ns/new:1", "x")
    assert not push.offer_to_create_repository(settings, reference)  # no
    assert started == []
    assert push.offer_to_create_repository(settings, reference)  # yes
    ((argv, image),) = started
    assert argv[-3::2] == ("--search-root", "tenancy.repository")
    assert image == "fra.ocir.io/ns/new:1"
    assert not push.offer_to_create_repository(
        settings, parse_image_name("docker.io/me/new:1", "x")
    )  # not in the tenancy
    assert len(questions) == 2
    assert all("fra.ocir.io/ns/new" in question and "`inv tenancy.repository`" in question for question in questions)
