"""The file system of a folder of the build VM, for mount points with any name."""

import os
from pathlib import Path

from remote.agent.scripts.disk_info import folder_info, parse_mounts

LINE = b"36 25 0:32 / %s rw,relatime shared:1 - %s source rw\n"


def test_a_folder_is_on_the_nearest_mount_point(tmp_path: Path) -> None:
    mount_point = tmp_path / "gr\N{LATIN SMALL LETTER O WITH DIAERESIS}\N{LATIN SMALL LETTER SHARP S}e \\1"
    mount_point.mkdir()
    escaped = os.fsencode(mount_point).replace(b"\\", rb"\134").replace(b" ", rb"\040")
    mounted = parse_mounts(LINE % (b"/", b"ext4") + LINE % (escaped, b"nfs4") + LINE % (b"/else", b"fuse.x"))
    assert (folder_info(str(mount_point / "a" / "b"), mounted)["kind"], folder_info("/", mounted)["kind"]) == (
        "nfs4",
        "ext4",
    )


def test_mount_points_with_odd_names_are_parsed() -> None:
    odd_names = [
        b"/home/other/\xff",
        b"/home/other/\x0c",
        b"/home/other/\xe2\x80\xa8",
        b"/home/other/\x85",
        b"/home/other/\r",
    ]
    mount_points = parse_mounts(b"".join(LINE % (name, b"fuse.x") for name in odd_names))
    assert mount_points == [(os.fsdecode(name), "fuse.x") for name in odd_names]
