"""Temporary folders: removed at the end, or at the next start after a killed process."""

import os
from pathlib import Path

import pytest

from bench.records.scratch_folders import scratch_folder


def make_stale_folder(at: Path, name: str) -> Path:
    """Create a folder as left by a process that was killed a while ago."""
    folder = at / name
    folder.mkdir()
    (folder / "context.tar").write_bytes(bytes(1000))
    os.utime(folder, (1, 1))
    return folder


def test_a_folder_exists_until_the_end_of_its_block(tmp_path: Path) -> None:
    with scratch_folder("ours-", tmp_path) as folder:
        (folder / "file").touch()
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), scratch_folder("ours-", tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    dead = make_stale_folder(tmp_path, "ours-dead")
    with scratch_folder("ours-", tmp_path):
        assert not dead.exists()


def test_folders_in_use_and_other_files_stay(tmp_path: Path) -> None:
    others, link, file = make_stale_folder(tmp_path, "theirs-1"), tmp_path / "ours-link", tmp_path / "ours-file"
    link.symlink_to(others)
    file.touch()
    with scratch_folder("ours-", tmp_path) as in_use:
        os.utime(in_use, (1, 1))
        young = tmp_path / "ours-young"
        young.mkdir()
        with scratch_folder("ours-", tmp_path):
            assert all(path.exists() for path in (others / "context.tar", link, file, in_use, young))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_stays(tmp_path: Path) -> None:
    theirs = make_stale_folder(tmp_path, "ours-theirs")
    os.chown(theirs, 4711, 4711)
    with scratch_folder("ours-", tmp_path):
        assert (theirs / "context.tar").exists()
