"""What of this subject starts a process."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.hosts.host import HostError
from remote.image import engine
from remote.image.engine import EngineError
from remote.image.plan import model_folders
from remote.ssh import rsync
from tests.support.hosts.local_fleet import LocalFleet


@pytest.mark.parametrize("manifest", ["{", "[]", '{"files": 3}', '{"files": [{"path": "a"}]}', '{"files": ["a"]}'])
def test_a_model_whose_manifest_is_damaged_counts_as_one_without(
    local: LocalFleet, tmp_path: Path, manifest: str
) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    seen = engine.disk_info(local.host(), [str(tmp_path)], [("org--model", str(tmp_path))])
    with pytest.raises(EngineError, match=r"has no readable manifest\.json, so it may be half a model"):
        model_folders(seen)


def test_a_whole_model_is_seen_with_its_files(local: LocalFleet, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    files = [{"path": "a", "size": 5, "sha256": "s"}, {"path": "b", "size": 7, "sha256": "t"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    (seen,) = engine.disk_info(local.host(), [str(tmp_path)], [("org--model", str(tmp_path))]).models
    assert [tuple(file) for file in seen["files"][1:]] == [("a", 5, 5, "s"), ("b", None, 7, "t")]


def test_a_tar_that_hangs_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsync, "_ASK_SEC", 0.2)
    host: Any = SimpleNamespace(name="vm")
    move = rsync._Move(host=host, source=Path("/"), target="/x", timeout_sec=30.0, on_progress=None)
    # It has closed its output, as an ssh does whose peer is done, and stays.
    packer = ("sh", "-c", "exec 1>&-; sleep 60")
    with pytest.raises(HostError, match="the connection broke while files were moving"):
        move._pipe(packer, ("true",), ["a"])
