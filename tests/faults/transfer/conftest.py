"""Where files are moved: from and to a worker on this machine, and over SSH."""

import time
from types import SimpleNamespace

import pytest

from remote.jobs import transfer
from tests.support.machines.ssh_client import local_or_ssh as local_or_ssh


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries there is a pause for the network's sake; there is no network here.

    The module's own clock: `time.sleep` itself belongs to every thread of this process, and to whoever waits in one.
    """
    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
