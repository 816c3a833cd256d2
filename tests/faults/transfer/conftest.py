"""Fixtures of the transfer tests: a worker on this machine, and one over SSH."""

import time
from types import SimpleNamespace

import pytest

from remote.jobs import transfer
from tests.support.machines.ssh_client import local_or_ssh as local_or_ssh


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pause between two attempts, because these tests use no network.

    Only the module's clock is replaced: other threads of this process use `time.sleep` too.
    """
    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
