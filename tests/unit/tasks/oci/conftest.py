"""One fake Oracle Cloud for all tests in this folder, used through the real SDK."""

import gc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from invoke import Context

from tasks.settings.layers import Settings, load
from tests.support.machines.fake_tenancy import ApiKey, FakeTenancy

UNCLOSED = "ignore:unclosed <socket:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore unclosed sockets: the SDK leaves connections to the garbage collector, which may run in another test."""
    for item in items:
        if item.nodeid.startswith("tests/unit/tasks/oci/"):
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED))


@pytest.fixture(scope="module", autouse=True)
def quick_keys() -> Iterator[None]:
    """Skip OpenSSL's primality test of each loaded key: 40 ms."""
    load = partial(serialization.load_pem_private_key, unsafe_skip_rsa_key_validation=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "load_pem_private_key", load)
        yield


@pytest.fixture(scope="module", autouse=True)
def _collect_connections() -> Iterator[None]:
    """Collect all connections before tests outside this folder run."""
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="unclosed <socket", category=ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def keys() -> ApiKey:
    return ApiKey()


@pytest.fixture(scope="session")
def _server(keys: ApiKey) -> Iterator[FakeTenancy]:
    with FakeTenancy(keys) as server:
        yield server


@pytest.fixture
def tenancy(_server: FakeTenancy, project: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTenancy:
    """Provide a fresh tenancy, a configuration for it in the home folder, and retries without pauses."""
    from oci.retry import RetryStrategyBuilder

    from tasks.oci import clients  # imports the SDK

    _server.reset()
    _server.keys.write_config(project.parent / "home")
    monkeypatch.setattr(clients, "ENDPOINT", _server.url)
    without_pauses = RetryStrategyBuilder(max_attempts=5, retry_max_wait_between_calls_seconds=0)
    monkeypatch.setattr(clients, "RETRIES", without_pauses.get_retry_strategy())
    return _server


@pytest.fixture
def settings(context: Callable[..., Context]) -> Callable[[str], Settings]:
    """Load settings with changes given as YAML."""
    return lambda text="{}": load(context(text=text))
