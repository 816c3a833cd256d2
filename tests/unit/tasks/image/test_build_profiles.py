"""Pinning of the base image: its digest is read from a registry and recorded next to the lock."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invoke import Context

from remote.image.plan import BuildProfile
from remote.image.references import DOCKER_HUB, InvalidReference, Reference, pull_reference
from tasks.errors import RetryableError, UsageError
from tasks.image import build_profiles
from tasks.settings.layers import load
from tests.support.machines.http_stubs import StubHandler, StubServer

BASE = b'{"schemaVersion": 2, "manifests": []}'


class TagRegistry(StubServer):
    """A registry with a manifest for each tag."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.manifests: dict[str, bytes] = {}

    def put(self, content: bytes, tag: str) -> str:
        """Store a manifest as if it had been pushed. Returns its digest."""
        self.manifests[tag] = content
        return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Handler(StubHandler):
    server: TagRegistry

    def do_GET(self) -> None:
        content = self.server.manifests.get(self.path.rpartition("/")[2])
        self.reply(404 if content is None else 200, content or b"")


@pytest.fixture(scope="module")
def registry() -> Iterator[TagRegistry]:
    with TagRegistry() as running:
        yield running


def profile(base: str) -> BuildProfile:
    return BuildProfile(name="current", base=base, python="3.12", stack_bytes=1, runs_on_cpu=True)


def test_a_base_is_pinned_by_the_digest_that_its_registry_has_until_it_is_upgraded(
    registry: TagRegistry, context: Callable[..., Context], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "image" / "locks").mkdir(parents=True, exist_ok=True)
    settings, current = load(context()), profile(f"{registry.host}/nvidia/cuda:12")
    first = registry.put(BASE, "12")
    assert build_profiles.pinned_base(project, current) == current.base
    build_profiles._pin_base(settings, current, upgrade=False)
    assert build_profiles.pinned_base(project, current) == f"{current.base}@{first}"
    second = registry.put(BASE + b" ", "12")
    build_profiles._pin_base(settings, current, upgrade=False)
    assert build_profiles.pinned_base(project, current) == f"{current.base}@{first}"
    build_profiles._pin_base(settings, current, upgrade=True)
    assert build_profiles.pinned_base(project, current) == f"{current.base}@{second}"
    assert f"image/locks/current.base: {current.base}@{second}" in capsys.readouterr().out
    # Neither a record for another base nor a damaged record pins the base.
    assert build_profiles.pinned_base(project, profile("nvidia/cuda:13")) == "nvidia/cuda:13"
    (project / "image" / "locks" / "current.base").write_text(f"{current.base}@sha256:12")
    assert build_profiles.pinned_base(project, current) == current.base


def test_a_base_that_cannot_be_found_is_one_line_and_the_packages_stay_locked(
    registry: TagRegistry, context: Callable[..., Context]
) -> None:
    settings = load(context())
    with pytest.raises(UsageError, match=r"image/profiles.yaml: current: base: 127.* nvidia/cuda:none"):
        build_profiles._pin_base(settings, profile(f"{registry.host}/nvidia/cuda:none"), upgrade=False)
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1/nvidia/cuda:12.*; `inv image.lock --profile current`"):
        build_profiles._pin_base(settings, profile("127.0.0.1:1/nvidia/cuda:12"), upgrade=False)


@pytest.mark.parametrize(("name", "host", "path", "tag"), [
    ("nvidia/cuda:12.8.1-base-ubuntu24.04", DOCKER_HUB, "nvidia/cuda", "12.8.1-base-ubuntu24.04"),
    ("ubuntu", DOCKER_HUB, "library/ubuntu", "latest"),
    ("nvcr.io/nvidia/cuda:1", "nvcr.io", "nvidia/cuda", "1"),
    ("localhost:5000/a:b", "localhost:5000", "a", "b"),
])  # fmt: skip
def test_a_name_is_resolved_to_the_registry_that_an_engine_would_use(name: str, host: str, path: str, tag: str) -> None:
    assert pull_reference(name) == Reference(host=host, path=path, tag=tag)


@pytest.mark.parametrize("name", ["", "Upper/case", "a b", "nvidia/cuda:x/y"])
def test_an_invalid_image_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidReference):
        pull_reference(name)
