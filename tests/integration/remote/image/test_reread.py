"""Models and file systems of the VM, read by a real process."""

import json
from pathlib import Path

import pytest

from remote.image import engine
from remote.image.engine import EngineError
from remote.image.plan import model_folders
from tests.support.hosts.local_fleet import LocalFleet


@pytest.mark.parametrize("manifest", ["{", "[]", '{"files": 3}', '{"files": [{"path": "a"}]}', '{"files": ["a"]}'])
def test_a_damaged_manifest_counts_as_missing(local: LocalFleet, tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    disks = engine.disk_info(local.host(), [str(tmp_path)], [("org--model", str(tmp_path))])
    with pytest.raises(EngineError, match=rf"{tmp_path} .*manifest\.json.*; .*`inv model\.fetch`"):
        model_folders(disks)


def test_a_complete_model_is_listed_with_its_files(local: LocalFleet, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    files = [{"path": "a", "size": 5, "sha256": "s"}, {"path": "b", "size": 7, "sha256": "t"}]
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    (model,) = engine.disk_info(local.host(), [str(tmp_path)], [("org--model", str(tmp_path))]).models
    assert [tuple(file) for file in model["files"][1:]] == [("a", 5, 5, "s"), ("b", None, 7, "t")]


def test_a_folder_that_does_not_exist_is_on_the_file_system_of_its_parent(local: LocalFleet) -> None:
    (folder,) = engine.disk_info(local.host(), ["/proc/none/deep"]).folders
    assert (folder.kind, folder.exists, folder.is_folder) == ("proc", False, True)
