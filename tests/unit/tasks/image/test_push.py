"""`inv push` to a repository that does not exist, or that refuses the login."""

import contextlib
from collections.abc import Callable

import pytest
from invoke import Context

from remote.image.vm_jobs import JobFailed
from tasks.errors import UsageError
from tasks.image import push


@pytest.mark.parametrize(("kind", "image", "remedy"), [
    ("absent", "fra.ocir.io/ns/new:1", "`inv tenancy.repository`"),
    ("forbidden", "fra.ocir.io/ns/new:1", "`inv tenancy.repository`"),
    ("unauthorized", "fra.ocir.io/ns/new:1", "NAMESPACE/oracleidentitycloudservice/USER"),
    ("absent", "registry.example.com/new:1", None),
])  # fmt: skip
def test_a_refused_push_names_what_to_type(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, kind: str, image: str, remedy: str | None
) -> None:
    def refuse(*_: object) -> None:
        raise JobFailed(kind, "refused")

    monkeypatch.setenv("INVOKE_REGISTRY_IMAGE", image)
    monkeypatch.setenv("INVOKE_REGISTRY_USER", "ns/me@example.com")
    monkeypatch.setattr(push, "build_vm", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(push, "_image_id", lambda *_, **__: "sha256:i")
    monkeypatch.setattr(push.vm_jobs, "create_agent", lambda _: None)
    monkeypatch.setattr(push, "_push", refuse)
    with pytest.raises(JobFailed if remedy is None else UsageError) as failed:
        push.push_image(context(), dry_run=False, force=False, cancel=False)
    assert (remedy or "") in failed.value.remedy
