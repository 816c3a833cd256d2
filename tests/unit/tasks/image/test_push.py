"""`inv push` to a repository that does not exist, or that refuses the login."""

from collections.abc import Callable

import pytest
from invoke import Context

from remote.hosts.command import Secret
from remote.hosts.local import LocalHost
from remote.image.engine import EngineImage
from remote.image.vm_jobs import JobFailed
from tasks.clients.registry import configured_image
from tasks.errors import UsageError
from tasks.image import push
from tasks.settings.layers import load


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
    monkeypatch.setattr(push.vm_work, "run", refuse)
    settings, built = load(context()), EngineImage(image_id="sha256:i", size=1, labels={})
    target, user = configured_image(settings)
    work = push.plan_push(settings, target, user, built, "inv push")
    with pytest.raises(JobFailed if remedy is None else UsageError) as failed:
        push._push(LocalHost(name="vm", workdir="/w"), work, target, lambda: Secret("x"))
    assert (remedy or "") in failed.value.remedy
