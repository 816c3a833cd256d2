"""Our work directory in a shared folder: paths of another user are reported and never used.

The other user is simulated with `chown`, so some tests need root; tests/system/image has two real users.
"""

import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from remote.agent.build_vm import archive
from remote.agent.shared import secure_dir
from remote.agent.shared.secure_dir import ForeignOwner, ensure_own_folder

OTHER = 4711
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change a file's owner")


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "team share"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_our_folder_is_created_private_and_an_open_one_is_made_private(share: Path) -> None:
    ours = share / "below" / "qlora-fleet"
    ensure_own_folder(ours, create=False)
    assert not ours.parent.exists()
    for _ in range(2):
        ensure_own_folder(ours)
        assert mode(ours) == 0o700
        ours.chmod(0o755)


@needs_root
def test_a_folder_of_another_user_is_reported_with_its_owner(share: Path) -> None:
    ours = share / "qlora-fleet"
    ours.mkdir(mode=0o777)
    os.chown(ours, OTHER, OTHER)
    with pytest.raises(ForeignOwner, match=rf"^{ours}: .*{OTHER}.* root; .*another folder"):
        ensure_own_folder(ours)


def test_a_link_at_our_folders_path_is_not_followed(share: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    ours = share / "qlora-fleet"
    for target in (outside, tmp_path / "nowhere"):
        ours.symlink_to(target)
        with pytest.raises(ForeignOwner, match=rf"^{ours}: .*link.*; "):
            ensure_own_folder(ours)
        ours.unlink()
    ours.touch()
    with pytest.raises(ForeignOwner, match=rf"^{ours}: .*folder.*; "):
        ensure_own_folder(ours)


def test_a_folder_writable_for_others_is_not_trusted(share: Path) -> None:
    ours = share / "qlora-fleet"
    ours.mkdir()
    ours.chmod(0o775)
    with pytest.raises(ForeignOwner, match=rf"^{ours}: .*\(mode 0775\).*; .*chmod 700 '{ours}'"):
        ensure_own_folder(ours)


@needs_root
@pytest.mark.parametrize(
    ("group", "mode", "owner", "token"),
    [
        (0, 0o777, 0, "sudo chmod +t '{share}'"),
        (OTHER, 0o2775, 0, "sudo chmod +t '{share}'"),
        (OTHER, 0o1777, OTHER, "sudo chown root '{share}'"),
    ],
)
@pytest.mark.parametrize("below", ["", "team"])
def test_a_share_in_which_another_user_could_exchange_our_folder_is_refused(
    share: Path, below: str, group: int, mode: int, owner: int, token: str
) -> None:
    ours = share / below / "qlora-fleet"
    ensure_own_folder(ours)
    os.chown(share, owner, group)
    share.chmod(mode)
    for create in (True, False):
        with pytest.raises(
            ForeignOwner, match=rf"^{share}: .*\b({OTHER}|any user)\b.*; .*{re.escape(token.format(share=share))}"
        ):
            ensure_own_folder(ours, create=create)


@needs_root
def test_a_link_of_another_user_on_the_way_to_our_folder_is_refused(share: Path) -> None:
    (share / "real").mkdir()
    link = share / "link"
    link.symlink_to("real")
    ensure_own_folder(link / "a" / "qlora-fleet")
    assert (share / "real" / "a" / "qlora-fleet").is_dir()
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(ForeignOwner, match=rf"^{link}: .*link.*{OTHER}"):
        ensure_own_folder(link / "a" / "qlora-fleet")
    loop = share / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="link"):
        ensure_own_folder(loop / "qlora-fleet")


@pytest.mark.parametrize(
    ("members", "has_list", "is_private"), [([], False, True), (["mallory"], False, False), ([], True, False)]
)
def test_the_users_own_group_may_write_unless_it_has_other_members_or_an_access_list(
    share: Path, monkeypatch: pytest.MonkeyPatch, members: list[str], has_list: bool, is_private: bool
) -> None:
    me = SimpleNamespace(pw_name="ubuntu", pw_gid=OTHER)
    monkeypatch.setattr(secure_dir.pwd, "getpwuid", lambda _: me)
    monkeypatch.setattr(secure_dir.pwd, "getpwall", lambda: [me])
    monkeypatch.setattr(secure_dir.grp, "getgrgid", lambda _: SimpleNamespace(gr_name="ubuntu", gr_mem=members))
    if has_list:
        monkeypatch.setattr(os, "getxattr", lambda *_: b"")
    assert secure_dir._is_private_group(share, OTHER) is is_private


def test_an_archive_replaces_a_planted_link_and_is_never_written_through_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("content")
    part = tmp_path / ".image.part"
    part.symlink_to(outside)
    with archive.create_file(part) as file:
        file.write(b"ours")
    assert (outside.read_text(), part.read_bytes(), part.is_symlink()) == ("content", b"ours", False)
