"""Tests of programs of one file on the oldest supported Python: a training's attempts.

And of a server whose certificate is not trusted.
"""

import os
import subprocess
from pathlib import Path

import pytest

from remote.hosts.bundle import inline_command
from remote.hosts.command import Secret
from remote.hosts.host_protocol import read_json
from remote.hosts.local import LocalHost
from remote.serving import BadServer, ServerClient
from tests.support.hosts.pythons import other_python
from tests.support.machines.fake_openai import FakeOpenAI
from tests.support.paths import ROOT


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost(name="old", workdir=str(tmp_path), python=(other_python("3.9"),))


def test_attempts_on_the_volume_have_the_times_of_their_files(host: LocalHost, tmp_path: Path) -> None:
    for number, seconds in ((2, (40, 50)), (1, (10, 30, 20))):
        folder = tmp_path / f"trial.{number}"
        folder.mkdir()
        for second in seconds:
            (folder / f"file-{second}").touch()
            os.utime(folder / f"file-{second}", (second, second))
    (tmp_path / "trial.2" / "progress.json").write_text('{"step": 3}')
    os.utime(tmp_path / "trial.2" / "progress.json", (60, 60))
    (tmp_path / "another.3").mkdir()

    def list_attempts(folder: Path, progress_file: str = "progress.json") -> object:
        arguments = (str(folder), "trial", progress_file, "lost.json", "checkpoints/restarts.json", "end-1.json")
        command = inline_command(host, "remote.agent.pods.list_attempts", *arguments)
        return read_json(host, command, "the attempts", timeout_sec=60.0)

    (tmp_path / "trial.1" / "lost.json").write_text('{"reason": "killed"}')
    os.utime(tmp_path / "trial.1" / "lost.json", (25, 25))
    times = [[1, 10, 30, {"reason": "killed"}], [2, 40, 60, None]]
    state = {"attempts": times, "progress": {"step": 3}, "restarts": None, "has_ended": False}
    assert list_attempts(tmp_path) == state
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "restarts.json").write_text("[]")
    (tmp_path / "end-1.json").touch()
    assert list_attempts(tmp_path, "none.json") == state | {"progress": None, "restarts": [], "has_ended": True}
    assert list_attempts(tmp_path / "absent") == {
        "attempts": [],
        "progress": None,
        "restarts": None,
        "has_ended": False,
    }


def test_every_module_imports_on_the_oldest_supported_python() -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "remote" / "agent").rglob("*.py"))]
    modules = [".".join(path.with_suffix("").parts) for path in paths]
    script = "import importlib, sys; sys.path.insert(0, sys.argv[1]); [*map(importlib.import_module, sys.argv[2:])]"
    subprocess.run((other_python("3.9"), "-I", "-S", "-B", "-c", script, str(ROOT), *modules), check=True, timeout=60)


def test_a_certificate_that_is_not_trusted_is_nothing_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.kubernetes.fake_cluster import tls_context  # not while tests are collected: it takes long

    authority, context = tmp_path / "ca.crt", tls_context(tmp_path)
    with FakeOpenAI({}, key="k") as served:
        served.socket = context.wrap_socket(served.socket, server_side=True)
        with pytest.raises(BadServer, match=r"not trusted: .*SSL_CERT_FILE"):
            ServerClient(f"https://{served.host}", Secret("k")).models()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert ServerClient(f"https://{served.host}", Secret("k")).models() == ["tuned"]
