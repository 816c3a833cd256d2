"""One stand-in of Oracle Cloud for all tests of the tenancy, with the real SDK before it."""

import gc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from invoke import Context

from tasks.settings.load import Settings, load
from tests.support.machines.fake_tenancy import FakeTenancy, Keys

UNCLOSED = "ignore:unclosed <socket:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The SDK leaves its connections to the garbage collector, which may come to them in another test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED))


@pytest.fixture(scope="module", autouse=True)
def _keys_are_taken_as_they_are() -> Iterator[None]:
    """OpenSSL tests the numbers of a key for being primes whenever it is read: 37 ms of processor time each."""
    load = partial(serialization.load_pem_private_key, unsafe_skip_rsa_key_validation=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "load_pem_private_key", load)
        yield


@pytest.fixture(scope="module", autouse=True)
def _connections() -> Iterator[None]:
    """None of them is left to a test outside this folder."""
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="unclosed <socket", category=ResourceWarning)
        gc.collect()


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
    from tasks.oci.access import clients  # which imports it

    _server.reset()
    _server.keys.config_into(project.parent / "home")
    monkeypatch.setattr(clients, "ENDPOINT", _server.url)
    monkeypatch.setattr(clients, "LONGEST_PAUSE_SEC", 0.0)
    return _server


@pytest.fixture
def settings(context: Callable[..., Context]) -> Callable[[str], Settings]:
    """Settings with some changed, given as YAML."""
    return lambda text="{}": load(context(text=text))
