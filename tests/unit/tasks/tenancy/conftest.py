"""One stand-in of Oracle Cloud for all tests of the tenancy, with the real SDK before it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invoke import Context

from tasks.settings.load import Settings, load
from tests.support.machines.fake_tenancy import FakeTenancy, Keys


@pytest.fixture(scope="session")
def keys() -> Keys:
    return Keys()


@pytest.fixture(scope="session")
def _server(keys: Keys) -> Iterator[FakeTenancy]:
    with FakeTenancy(keys) as server:
        yield server


@pytest.fixture
def tenancy(_server: FakeTenancy, project: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTenancy:
    """The tenancy as new, a configuration for it in the home folder, and no pauses between tries."""
    pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")
    from tasks.tenancy.access import clients  # which imports it

    _server.reset()
    _server.keys.config_into(project.parent / "home")
    monkeypatch.setattr(clients, "ENDPOINT", _server.url)
    monkeypatch.setattr(clients, "LONGEST_PAUSE_SEC", 0.0)
    return _server


@pytest.fixture
def settings(project: Path, context: Callable[..., Context]) -> Callable[[str], Settings]:
    """Settings with some changed, given as YAML."""

    def make(text: str = "{}") -> Settings:
        (project / "f.yaml").write_text(text)
        return load(context("f.yaml"))

    return make
