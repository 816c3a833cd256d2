"""What arrives, what is here already, and disks and folders that cannot take it."""

import os

import pytest

from remote.hosts.host import HostError
from remote.jobs.agent import HostRefused
from remote.jobs.download import PartialFile
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import LocalFleet, mounted
from tests.support.hosts.migration import fill, move, tree

ODD_NAMES = [
    "plain.txt",
    "with space",
    "qu'ote",
    'double"quote',
    "ünï/cödé/日本語.json",
    "deep/er/and/deeper/file",
    "new\nline",
    "-rf",
    "$HOME",
    "back\\slash",
    " leading and trailing ",
    "not-utf8-\udcff",
]


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_tree_arrives_whole_and_a_second_time_moves_nothing(local: LocalFleet, direction: str) -> None:
    source, target = local.folder / "so urce", local.folder / "tar'get"
    content = fill(source, {name: number * 1000 for number, name in enumerate(ODD_NAMES)} | {"empty": 0})
    content |= fill(source, {"large": 3 << 20})
    (source / "link").symlink_to("plain.txt")
    agent = local.agent()

    moved = move(direction, agent, source, target)
    assert tree(target) == content
    assert sorted(moved.came) == sorted(content)
    assert moved.already == ()
    assert moved.byte_count == sum(map(len, content.values()))

    again = move(direction, agent, source, target)
    assert (again.came, again.byte_count) == ((), 0)
    assert sorted(again.already) == sorted(content)


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_changed_file_replaces_its_old_version_and_the_rest_stays(local: LocalFleet, direction: str) -> None:
    source, target = local.folder / "source", local.folder / "target"
    fill(source, {"a": 100, "b": 100})
    move(direction, local.agent(), source, target)
    (source / "b").write_bytes(b"new")
    moved = move(direction, local.agent(), source, target)
    assert (moved.came, moved.already, moved.byte_count) == (("b",), ("a",), 3)
    assert (target / "b").read_bytes() == b"new"


def test_only_what_is_asked_for_comes(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 10, "deep/b": 10})
    assert pull(local.agent(), str(source), target, only=("deep/b", "absent")).came == ("deep/b",)
    assert tree(target) == {"deep/b": content["deep/b"]}
    assert pull(local.agent(), str(local.folder / "nowhere"), target).came == ()


def test_a_file_of_equal_size_and_time_with_other_bytes_is_replaced(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 1000})
    fill(target, {"a": 1000}, seed=2)
    os.utime(target / "a", ns=((source / "a").stat().st_atime_ns, (source / "a").stat().st_mtime_ns))
    assert pull(local.agent(), str(source), target).came == ("a",)
    assert tree(target) == content


def test_a_file_that_another_pull_is_bringing_is_left_to_it(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 1000})
    other = PartialFile.of(target / "a")
    with pytest.raises(HostError, match="another process is receiving this file"):
        pull(local.agent(), str(source), target)
    other.file.close()
    pull(local.agent(), str(source), target)
    assert tree(target) == content


def test_unwanted_files_stay_where_they_are(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 10, "deep/b": 10, "progress.json": 10})
    moved = pull(local.agent(), str(source), target, without={"progress.json", "absent"})
    assert moved.came == ("a", "deep/b")
    assert tree(target) == {name: content[name] for name in ("a", "deep/b")}


def test_a_full_disk_here_is_said_as_such_and_the_pull_goes_on_once_there_is_room(local: LocalFleet) -> None:
    source = local.folder / "source"
    content = fill(source, {"a": 600_000, "b": 600_000})
    with mounted(local.folder / "small") as disk:
        with pytest.raises(OSError, match="No space left on device"):
            pull(local.agent(), str(source), disk / "target")
        assert (disk / "target" / "a").read_bytes() == content["a"]
        assert not (disk / "target" / "b").exists()
        (disk / "target" / "a").unlink()
        assert pull(local.agent(), str(source), disk / "target", only=("b",)).byte_count < 600_000
        assert (disk / "target" / "b").read_bytes() == content["b"]


def test_a_full_disk_there_is_refused_with_the_reason(local: LocalFleet) -> None:
    source = local.folder / "source"
    fill(source, {"a": 2_000_000})
    with mounted(local.folder / "small") as disk:
        with pytest.raises(HostRefused, match="No space left on device"):
            push(local.agent(), source, str(disk / "target"))
        assert not (disk / "target" / "a").exists()


@pytest.mark.parametrize("in_the_way", ["file", "folder"])
def test_what_stands_in_the_way_here_is_an_error_of_this_machine_not_of_the_host(
    local: LocalFleet, in_the_way: str
) -> None:
    source, target = local.folder / "source", local.folder / "target"
    fill(source, {"a/b": 10})
    target.mkdir()
    if in_the_way == "file":
        (target / "a").write_text("")
    else:
        (target / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError, match=r"exists|directory"):
        pull(local.agent(), str(source), target)
