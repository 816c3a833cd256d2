"""A folder of our own where everybody may make folders: what another user put there is named and never used.

The other user is made by `chown`, so most of this needs root; tests/system/image has two real users.
"""

import os
import stat
from pathlib import Path

import pytest

from remote.image.vm_agent import archive
from remote.image.vm_agent.scripts import engine
from remote.image.vm_agent.secure_dir import ForeignOwner, own_folder

OTHER = 4711
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def share(tmp_path: Path) -> Path:
    made = tmp_path / "share"
    made.mkdir()
    made.chmod(0o1777)
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_our_folder_is_made_closed_and_an_open_one_of_ours_is_closed(share: Path) -> None:
    ours = share / "qlora-fleet"
    own_folder(ours, make=False)
    assert not ours.exists()
    for _ in range(2):
        own_folder(ours)
        assert mode(ours) == 0o700
        ours.chmod(0o755)


def test_a_share_without_our_folders_parent_is_made_or_left_alone(tmp_path: Path) -> None:
    own_folder(tmp_path / "a" / "b", make=False)
    assert not (tmp_path / "a").exists()
    own_folder(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700


@needs_root
def test_a_folder_that_another_user_made_is_named_with_its_owner(share: Path) -> None:
    ours = share / "qlora-fleet"
    ours.mkdir(mode=0o777)
    os.chown(ours, OTHER, OTHER)
    with pytest.raises(ForeignOwner, match=rf"{ours}: belongs to .*{OTHER}.*, not to root; name another place"):
        own_folder(ours)


def test_a_link_in_our_folders_place_is_not_followed(share: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    ours = share / "qlora-fleet"
    for target in (precious, tmp_path / "nowhere"):
        ours.symlink_to(target)
        with pytest.raises(ForeignOwner, match=rf"{ours}: is a link, made by "):
            own_folder(ours)
        ours.unlink()
    ours.touch()
    with pytest.raises(ForeignOwner, match="is no folder"):
        own_folder(ours)


def test_a_folder_into_which_others_may_write_is_not_trusted(share: Path) -> None:
    ours = share / "qlora-fleet"
    ours.mkdir()
    ours.chmod(0o775)
    with pytest.raises(ForeignOwner, match=rf"others may write there \(mode 0775\).*chmod 700 {ours}"):
        own_folder(ours)


def test_a_share_where_everybody_may_rename_everything_is_refused(share: Path) -> None:
    share.chmod(0o777)
    with pytest.raises(ForeignOwner, match=rf"type on the VM: sudo chmod \+t {share}"):
        own_folder(share / "qlora-fleet")


def test_an_engines_disk_is_root_s_own_file_or_is_refused(tmp_path: Path) -> None:
    disk = tmp_path / "engine.ext4"
    disk.touch(mode=0o600)
    if os.geteuid() == 0:
        engine.check_disk(disk, disk.lstat())
        os.chown(disk, OTHER, OTHER)
    with pytest.raises(engine.ForeignContainer, match="not a file that root alone can change"):
        engine.check_disk(disk, disk.lstat())
    link = tmp_path / "link"
    link.hardlink_to(disk)
    with pytest.raises(engine.ForeignContainer, match="2 names"):
        engine.check_disk(link, link.lstat())


def test_an_engines_folder_is_its_owners_alone_or_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "qlora-fleet"
    folder.mkdir(mode=0o700)
    os.close(engine.opened(folder, os.geteuid()))
    folder.chmod(0o711)
    with pytest.raises(engine.ForeignContainer, match="mode 0711"):
        engine.opened(folder, os.geteuid())
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(engine.ForeignContainer, match="is no folder"):
        engine.opened(link, os.geteuid())


def test_an_archive_is_written_beside_a_planted_link_and_never_through_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("all of it")
    part = tmp_path / ".image.part"
    part.symlink_to(precious)
    with archive.fresh(part) as file:
        file.write(b"ours")
    assert (precious.read_text(), part.read_bytes(), part.is_symlink()) == ("all of it", b"ours", False)
    link = tmp_path / "link"
    link.symlink_to(precious)
    assert archive.is_ours(precious)
    assert not archive.is_ours(link)
