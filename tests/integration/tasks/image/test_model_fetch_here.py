"""`inv model.fetch --here`: the hub's real client and a fake hub, both on this machine."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.machines.fake_hub import MODEL
from tests.support.machines.ports import free_ports
from tests.support.machines.ssh_tools import wait_for
from tests.support.paths import ROOT

pytest.importorskip("huggingface_hub")
Inv = Callable[..., "subprocess.CompletedProcess[str]"]
FOLDER = f"models/{MODEL.replace('/', '--')}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder, port = tmp_path / "hub", free_ports()
    (folder / "files").mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": os.urandom(300_000)}.items():
        (folder / "files" / name).write_bytes(content)
    (folder / "faults").write_text("{}")
    monkeypatch.setenv("INVOKE_HUB_ENDPOINT", f"http://127.0.0.1:{port}")
    argv = (sys.executable, "-m", "tests.support.machines.fake_hub", str(folder), str(port))
    with subprocess.Popen(argv, cwd=ROOT) as server:
        try:
            wait_for(partial(_is_listening, port), "the hub")
            yield folder
        finally:
            server.kill()


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_model_is_fetched_here_verified_and_fetched_once(hub: Path, project: Path, inv: Inv) -> None:
    fetch = ("model.fetch", "--here", f"--model={MODEL}")
    (project / "image").symlink_to(ROOT / "image")  # the lock of the hub's client
    (hub / "faults").write_text(json.dumps({"flip": "model.safetensors"}))
    assert inv(*fetch).returncode == 4
    assert not (project / FOLDER / "model.safetensors").exists()
    (hub / "faults").write_text("{}")
    fetched = inv(*fetch)
    assert (fetched.returncode, fetched.stdout.splitlines()[-1]) == (0, f"to use it: `inv train --model={FOLDER}`")
    for path in (hub / "files").iterdir():
        assert (project / FOLDER / path.name).read_bytes() == path.read_bytes()
    requests = (hub / "requests.jsonl").read_text()
    assert inv(*fetch).returncode == 0
    assert (hub / "requests.jsonl").read_text() == requests
