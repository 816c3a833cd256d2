"""Transfer of folders: new, present and changed files, full disks, and paths that cannot be written."""

import os
import re

import pytest

from remote.hosts.host_protocol import HostError
from remote.jobs.job import HostRefused
from remote.jobs.transfer import open_part, pull, push
from tests.support.hosts.local_fleet import LocalFleet, mounted_tmpfs
from tests.support.hosts.migration import read_tree, transfer_files, write_random_files
from tests.support.machines.ssh_client import LOCAL_AND_SSH

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


@LOCAL_AND_SSH
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_tree_arrives_complete_and_a_second_transfer_sends_nothing(local: LocalFleet, direction: str) -> None:
    source, target = local.folder / "so urce", local.folder / "tar'get"
    content = write_random_files(source, {name: number * 1000 for number, name in enumerate(ODD_NAMES)} | {"empty": 0})
    content |= write_random_files(source, {"large": 3 << 20})
    (source / "link").symlink_to("plain.txt")
    agent = local.agent()

    result = transfer_files(direction, agent, source, target)
    assert read_tree(target) == content
    assert sorted(result.transferred) == sorted(content)
    assert result.already_present == ()
    assert result.byte_count == sum(map(len, content.values()))

    second = transfer_files(direction, agent, source, target)
    assert (second.transferred, second.byte_count) == ((), 0)
    assert sorted(second.already_present) == sorted(content)


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_changed_file_replaces_its_old_version_and_the_rest_stays(local: LocalFleet, direction: str) -> None:
    source, target = local.folder / "source", local.folder / "target"
    write_random_files(source, {"a": 100, "b": 100})
    transfer_files(direction, local.agent(), source, target)
    before = (source / "b").stat()
    (source / "b").write_bytes(b"x" * 100)  # as long as before, and with its time
    os.utime(source / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    result = transfer_files(direction, local.agent(), source, target)
    assert (result.transferred, result.already_present, result.byte_count) == (("b",), ("a",), 100)
    assert read_tree(target) == read_tree(source)


def test_only_requested_files_are_transferred(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 10, "deep/b": 10, "progress.json": 10})
    assert pull(local.agent(), str(source), target, only=("deep/b", "absent")).transferred == ("deep/b",)
    assert read_tree(target) == {"deep/b": content["deep/b"]}
    assert pull(local.agent(), str(source), target, exclude={"progress.json", "absent"}).transferred == ("a",)
    assert pull(local.agent(), str(local.folder / "nowhere"), target).transferred == ()


def test_a_file_that_another_pull_receives_is_refused(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 1000})
    other = open_part(target / "a")
    with pytest.raises(HostError, match=re.escape(str(target / "a"))):
        pull(local.agent(), str(source), target)
    other.close()
    pull(local.agent(), str(source), target)
    assert read_tree(target) == content


def test_a_full_disk_here_is_named_and_the_pull_resumes_once_space_is_free(local: LocalFleet) -> None:
    source = local.folder / "source"
    content = write_random_files(source, {"a": 600_000, "b": 600_000})
    with mounted_tmpfs(local.folder / "small") as disk:
        with pytest.raises(OSError, match="No space left on device"):
            pull(local.agent(), str(source), disk / "target")
        assert (disk / "target" / "a").read_bytes() == content["a"]
        assert not (disk / "target" / "b").exists()
        (disk / "target" / "a").unlink()
        assert pull(local.agent(), str(source), disk / "target", only=("b",)).byte_count < 600_000
        assert (disk / "target" / "b").read_bytes() == content["b"]


@LOCAL_AND_SSH
def test_a_full_disk_on_the_host_is_refused_with_the_reason(local: LocalFleet) -> None:
    source = local.folder / "source"
    write_random_files(source, {"a": 2_000_000})
    with mounted_tmpfs(local.folder / "small") as disk:
        with pytest.raises(HostRefused, match="No space left on device"):
            push(local.agent(), source, str(disk / "target"))
        assert not (disk / "target" / "a").exists()


def test_an_obstacle_here_is_an_error_of_this_machine_and_not_of_the_host(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    write_random_files(source, {"a/b": 10})
    (target / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        pull(local.agent(), str(source), target)
