"""Which file system a folder of the build VM is on, whatever is mounted there under whatever name."""

import os
from pathlib import Path

from remote.image.vm_agent.scripts.disk_info import mounts, place

LINE = b"36 25 0:32 / %s rw,relatime shared:1 - %s source rw\n"


def test_a_folder_is_on_the_nearest_mount_point_whatever_its_name(tmp_path: Path) -> None:
    here = tmp_path / "gr\N{LATIN SMALL LETTER O WITH DIAERESIS}\N{LATIN SMALL LETTER SHARP S}e \\1"
    here.mkdir()
    point = os.fsencode(here).replace(b"\\", rb"\134").replace(b" ", rb"\040")
    mounted = mounts(LINE % (b"/", b"ext4") + LINE % (point, b"nfs4") + LINE % (b"/else", b"fuse.x"))
    assert (place(str(here / "a" / "b"), mounted)["kind"], place("/", mounted)["kind"]) == ("nfs4", "ext4")


def test_what_others_have_mounted_under_odd_names_is_no_reason_to_stop() -> None:
    odd = [
        b"/home/other/\xff",
        b"/home/other/\x0c",
        b"/home/other/\xe2\x80\xa8",
        b"/home/other/\x85",
        b"/home/other/\r",
    ]
    found = mounts(b"".join(LINE % (point, b"fuse.x") for point in odd))
    assert found == [(os.fsdecode(point), "fuse.x") for point in odd]
