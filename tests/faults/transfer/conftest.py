"""Where files are moved: from and to a worker on this machine, and over SSH."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from remote.jobs import transfer
from tests.support.hosts.local_fleet import LocalFleet
from tests.support.machines.ssh_client import local_or_ssh


@pytest.fixture(params=["local", "ssh"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalFleet]:
    with local_or_ssh(request, tmp_path) as local:
        yield local


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries there is a pause for the network's sake; there is no network here.

    The module's own clock: `time.sleep` itself belongs to every thread of this process, and to whoever waits in one.
    """
    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
