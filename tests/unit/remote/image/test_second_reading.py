"""What used to leave the build VM's code as a traceback, or under another name than its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from remote.hosts.host import AddressWrong
from remote.image import sdk as images
from remote.image.engine import EngineError
from remote.image.modelfetch import FetchError, _as_files
from remote.ssh import connection
from remote.ssh.config import Hop


def test_known_hosts_that_cannot_be_read_are_no_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/home/me/.ssh/known_hosts")

    monkeypatch.setattr(connection, "known_keys", shut)
    with pytest.raises(AddressWrong, match=r"^/home/me/\.ssh/known_hosts: cannot be read: Permission denied; "):
        connection._Strict(Hop(name="vm", hostname="vm", user="me", port=22))


@pytest.mark.parametrize("kind", [requests.ReadTimeout, requests.ConnectionError])
def test_a_check_that_takes_too_long_is_named_whatever_the_sdk_calls_it(kind: type[Exception]) -> None:
    def wait(**_: object) -> None:
        raise kind("UnixHTTPConnectionPool(host='localhost', port=None): Read timed out. (read timeout=60.0)")

    removed = []
    container = SimpleNamespace(start=lambda: None, wait=wait, remove=lambda **_: removed.append(1))
    sdk: Any = SimpleNamespace(containers=SimpleNamespace(create=lambda *_, **__: container))
    with pytest.raises(EngineError, match="python check: not done after 60 s in image"):
        images.run_check(sdk, "image", ("python", "check"), timeout_sec=60)
    assert removed == [1]


def test_a_cache_that_cannot_be_linked_to_is_named(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--o--m" / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    said = r"models--o--m: cannot be linked to: No such file"
    with pytest.raises(FetchError, match=said), _as_files(snapshot, ["x"]):
        pytest.fail("there is nothing to bring")
    assert [path.name for path in snapshot.parent.parent.iterdir()] == ["snapshots"]
