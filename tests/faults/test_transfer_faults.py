"""Files moved over a wire that breaks, spoils bytes and lies: what arrives is verified, and nothing goes elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remote import transfer
from remote.agent import Agent, HostRefused
from remote.command import Command
from remote.host import Completed, HostError, HostUnreachable, Readable
from remote.incoming import Part
from remote.onhost.basics import line_of
from remote.onhost.files import part_of
from remote.transfer import ChecksumMismatch, pull, push
from tests.ground.sshyard import SshYard, make_yard
from tests.unit.remote.hostyard import Wire, Yard, mounted, wait_for

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


@pytest.fixture(params=["local", "ssh"])
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    with make_yard(request, tmp_path) as yard:
        yield yard


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries there is a pause for the network's sake; there is no network here."""
    monkeypatch.setattr(transfer.time, "sleep", lambda _: None)


def fill(folder: Path, sizes: dict[str, int], seed: int = 1) -> dict[str, bytes]:
    """Make files of these sizes with random content; what they hold."""
    chooser, content = random.Random(seed), {}
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content[name] = chooser.randbytes(size)
        path.write_bytes(content[name])
    return content


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, partial ones included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def move(direction: str, agent: Agent, source: Path, target: Path) -> transfer.Moved:
    if direction == "pull":
        return pull(agent, str(source), target)
    return push(agent, source, str(target))


def leave_to_system_tests(yard: Yard, direction: str) -> None:
    if isinstance(yard, SshYard) and direction == "push":
        pytest.skip("SSH has 2 MiB in flight, more than these files; test_ssh_faults.py cuts a cable under larger ones")


def put_program(yard: Yard) -> None:
    """From now on the host has our program, and the first call with `send` is the one that moves bytes."""
    yard.agent().line("holder", {"slot": "/no/slot"})


class Narrow(Wire):
    """A wire whose n-th stream of files breaks after so many bytes: of the whole answer, or of the bulk sent."""

    def breaks(self, after: list[int]) -> Narrow:
        self.after = after
        return self

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | Readable | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        if self.after and {"send", "receive"} & set(command.argv):
            left = self.after.pop(0)
            if "send" in command.argv:
                self.cuts = iter([left])
            else:
                assert stdin is not None
                assert not isinstance(stdin, bytes)
                stdin = Breaking(stdin, left)
        return super().run(
            command, stdin=stdin, on_stdout=on_stdout, timeout_sec=timeout_sec, idle_timeout_sec=idle_timeout_sec
        )


class Breaking:
    """A stream that breaks after `left` bytes of its bulk; the list of files before it passes."""

    def __init__(self, source: Readable, left: int) -> None:
        self._source, self._left, self._head = source, left, True

    def read(self, size: int, /) -> bytes:
        piece = self._source.read(size if self._head else min(size, self._left) or 1)
        if self._head:
            self._head = False
            return piece
        if self._left == 0:
            raise HostUnreachable("the stream broke")
        self._left -= len(piece)
        return piece


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_tree_arrives_whole_and_a_second_time_moves_nothing(yard: Yard, direction: str) -> None:
    source, target = yard.folder / "so urce", yard.folder / "tar'get"
    content = fill(source, {name: number * 1000 for number, name in enumerate(ODD_NAMES)} | {"empty": 0})
    content |= fill(source, {"large": 3 << 20})
    (source / "link").symlink_to("plain.txt")
    agent = yard.agent()

    moved = move(direction, agent, source, target)
    assert tree(target) == content
    assert sorted(moved.came) == sorted(content)
    assert moved.already == ()
    assert moved.byte_count == sum(map(len, content.values()))

    again = move(direction, agent, source, target)
    assert (again.came, again.byte_count) == ((), 0)
    assert sorted(again.already) == sorted(content)


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_changed_file_replaces_its_old_version_and_the_rest_stays(yard: Yard, direction: str) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    fill(source, {"a": 100, "b": 100})
    move(direction, yard.agent(), source, target)
    (source / "b").write_bytes(b"new")
    moved = move(direction, yard.agent(), source, target)
    assert (moved.came, moved.already, moved.byte_count) == (("b",), ("a",), 3)
    assert (target / "b").read_bytes() == b"new"


def test_only_what_is_asked_for_comes(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 10, "deep/b": 10})
    assert pull(yard.agent(), str(source), target, only=("deep/b", "absent")).came == ("deep/b",)
    assert tree(target) == {"deep/b": content["deep/b"]}
    assert pull(yard.agent(), str(yard.folder / "nowhere"), target).came == ()


# --- a wire that breaks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_broken_transfer_goes_on_inside_the_file_it_broke_in(yard: Yard, direction: str, seed: int) -> None:
    leave_to_system_tests(yard, direction)
    source, target = yard.folder / "source", yard.folder / "target"
    chooser = random.Random(seed)
    content = fill(source, {"a": 5, "b": 700_000, "empty": 0, "c": 900_000, "d": 1})
    total = sum(map(len, content.values()))
    put_program(yard)
    breaks = [chooser.randrange(total // 4) for _ in range(6)]
    wire = Narrow(host=yard.host()).breaks(list(breaks))

    moved = move(direction, Agent(wire), source, target)
    assert wire.after == []
    assert tree(target) == content
    assert sorted(moved.came) == sorted(content)
    # What was in a pipe when the wire broke may have to be sent again: 64 KiB at most, each time.
    assert total <= moved.byte_count <= total + len(breaks) * 2 * 65_536
    if direction == "pull":
        assert moved.byte_count == total


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_transfer_that_broke_for_good_is_taken_up_where_it_was(yard: Yard, direction: str) -> None:
    leave_to_system_tests(yard, direction)
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 200_000, "b": 2_000_000})
    put_program(yard)
    wire = Narrow(host=yard.host()).breaks([700_000, *[0] * 9])
    with pytest.raises(HostUnreachable):
        move(direction, Agent(wire), source, target)
    assert not (target / "b").exists()
    moved = move(direction, yard.agent(), source, target)
    assert tree(target) == content
    assert moved.byte_count <= 2_200_000 - 700_000 + 2 * 65_536


def test_a_stream_lost_with_success_reported_is_asked_for_again_and_not_for_ever(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 1000})

    put_program(yard)
    left = [2]

    def swallow(_: Command, piece: bytes) -> bytes:
        left[0] -= 1
        return piece[:-1] if left[0] >= 0 else piece

    with pytest.raises(HostUnreachable, match="the stream ended before its list of files"):
        pull(Agent(Wire(host=yard.host(), garble=lambda c, p: b"" if "send" in c.argv else p)), str(source), target)
    moved = pull(Agent(Wire(host=yard.host(), garble=swallow)), str(source), target, timeout_sec=20.0)
    assert tree(target) == content
    assert moved.byte_count == 1000


def test_the_receiver_of_a_broken_stream_that_lives_on_does_not_spoil_the_next_one(yard: Yard) -> None:
    """A server learns late that its client is gone; until then the old receiver still has bytes to write."""
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 900_000})["a"]
    put_program(yard)
    (program,) = Path(yard.host().workdir).glob(".onhost-*/remote/onhost/__main__.py")
    digest = hashlib.sha256(content).hexdigest()
    part = part_of(target / "a", digest[:16])
    head = json.dumps([{"path": "a", "size": len(content), "sha256": digest, "offset": 0}]).encode()
    arguments = json.dumps({"root": str(target), "stdin_bytes": len(head)})
    argv = [sys.executable, "-I", "-S", str(program), "receive", arguments]
    old = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0)
    assert old.stdin is not None
    old.stdin.write(head + content[:300_000])
    wait_for(lambda: part.exists() and part.stat().st_size >= 200_000, "the first bytes")

    class Late(Wire):
        def run(self, command, *, stdin=None, **rest):  # type: ignore[no-untyped-def]
            if "receive" in command.argv:
                stdin = Between(stdin, lambda: old.stdin.write(content[300_000:600_000]))
            return super().run(command, stdin=stdin, **rest)

    moved = push(Agent(Late(host=yard.host())), source, str(target))
    old.stdin.close()
    old.wait()
    assert tree(target) == {"a": content}
    assert moved.byte_count < len(content)


class Between:
    """A stream in the middle of which something happens, once."""

    def __init__(self, source: Readable, act: Callable[[], object]) -> None:
        self._source, self._act, self._reads = source, act, 0

    def read(self, size: int, /) -> bytes:
        self._reads += 1
        if self._reads == 4:
            self._act()
        return self._source.read(size)


# --- a wire that spoils bytes -----------------------------------------------------------------------------------------


def flipping(verb: str, times: int) -> Callable[[Command, bytes], bytes]:
    """Flips one bit in the first `times` streams of that verb."""
    left = [times]

    def garble(command: Command, piece: bytes) -> bytes:
        if verb in command.argv and left[0] and len(piece) > 100:
            left[0] -= 1
            at = len(piece) // 2  # among the file's bytes: its head and its digest are shorter than it
            return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
        return piece

    return garble


def test_a_byte_flipped_on_its_way_is_asked_for_again(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 1000, "b": 1000})
    pull(Agent(Wire(host=yard.host(), garble=flipping("send", 1))), str(source), target)
    assert tree(target) == content


def test_a_file_that_arrives_wrong_twice_is_refused_and_nothing_is_kept(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    fill(source, {"a": 1000})
    with pytest.raises(ChecksumMismatch, match="a: its bytes do not match its sha256, twice"):
        pull(Agent(Wire(host=yard.host(), garble=flipping("send", 2))), str(source), target)
    assert tree(target) == {}


class FlippingIn(Wire):
    """Flips a bit of the bulk in the first `times` streams towards the host."""

    times = 1

    def run(self, command, *, stdin=None, **rest):  # type: ignore[no-untyped-def]
        if "receive" in command.argv and self.times:
            self.times -= 1
            stdin = Spoilt(stdin)
        return super().run(command, stdin=stdin, **rest)


class Spoilt:
    def __init__(self, source: Readable) -> None:
        self._source, self._pieces = source, 0

    def read(self, size: int, /) -> bytes:
        piece, self._pieces = self._source.read(size), self._pieces + 1
        return bytes([piece[0] ^ 1]) + piece[1:] if self._pieces == 2 else piece


def test_a_byte_flipped_towards_the_host_is_sent_again_and_refused_the_second_time(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 1000})
    push(Agent(FlippingIn(host=yard.host())), source, str(target))
    assert tree(target) == content

    twice = FlippingIn(host=yard.host())
    twice.times = 2
    with pytest.raises(ChecksumMismatch, match="arrived on worker-1 with a wrong sha256, twice"):
        push(Agent(twice), source, str(yard.folder / "other"))
    assert tree(yard.folder / "other") == {}


@pytest.mark.parametrize("size", [10, 1000, 2000], ids=["shorter", "as-long", "longer"])
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_partial_file_with_other_bytes_in_it_is_not_trusted(yard: Yard, direction: str, size: int) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 1000})
    target.mkdir()
    tag = "" if direction == "pull" else hashlib.sha256(content["a"]).hexdigest()[:16]
    part_of(target / "a", tag).write_bytes(b"?" * size)
    move(direction, yard.agent(), source, target)
    assert tree(target) == content


# --- a host that lies -------------------------------------------------------------------------------------------------


class Lying(Wire):
    """Answers `send` with lines, or plain bytes, of its own making."""

    def lying(self, *said: object) -> Lying:
        self.said = b"".join(part if isinstance(part, bytes) else line_of(part) for part in said)
        return self

    def run(self, command, *, on_stdout=None, **rest):  # type: ignore[no-untyped-def]
        if "send" not in command.argv:
            return super().run(command, on_stdout=on_stdout, **rest)
        on_stdout(self.said)
        return Completed(exit_code=0)


EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "..", "", ".", "a/..", "nul\0", "/"])
def test_a_name_that_leaves_the_folder_is_refused_and_nothing_is_written(yard: Yard, path: str) -> None:
    target = yard.folder / "in" / "target"
    target.mkdir(parents=True)
    host = Lying(host=yard.host()).lying({"files": ["good", path]}, {"size": 0, "from": 0}, {"sha256": EMPTY})
    with pytest.raises(HostError, match="is not a path inside the folder; nothing was brought"):
        pull(Agent(host), "/any", target)
    assert list((yard.folder / "in").rglob("*")) == [target]


@pytest.mark.parametrize("files", [None, 7, "a", [7], [None], {"a": 1}])
def test_a_list_that_is_none_of_names_is_refused(yard: Yard, files: object) -> None:
    with pytest.raises(HostError, match="is not what was to come before its list of files"):
        pull(Agent(Lying(host=yard.host()).lying({"files": files})), "/any", yard.folder / "target")
    assert not (yard.folder / "target").exists()


@pytest.mark.parametrize("files", [["a", "a"], ["a", "b"], ["unwanted"]])
def test_files_that_nobody_asked_for_are_refused(yard: Yard, files: list[str]) -> None:
    host = Lying(host=yard.host()).lying({"files": files}, {"size": 0, "from": 0}, {"sha256": EMPTY})
    with pytest.raises(HostError, match="other files than it was asked for; nothing was brought"):
        pull(Agent(host), "/any", yard.folder / "target", only=("a", "unwanted"), without=("unwanted",))
    assert not (yard.folder / "target").exists()


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"files": []},
        {"same": True},
        {"size": "1", "from": 0},
        {"size": -1, "from": 0},
        {"size": True, "from": 0},
        {"size": 1},
        {"size": 1, "from": 1},
        {"size": 1, "from": 2},
        {"size": 1, "from": -1},
        {"size": 1, "from": False},
    ],
)
def test_a_head_that_describes_no_file_is_refused(yard: Yard, line: dict[str, object]) -> None:
    host = Lying(host=yard.host()).lying({"files": ["a"]}, line)
    with pytest.raises(HostError, match="is not what was to come inside a"):
        pull(Agent(host), "/any", yard.folder / "target")
    assert not (yard.folder / "target").exists()


@pytest.mark.parametrize("line", [{}, {"sha256": None}, {"sha256": "0"}, {"changed": None}])
def test_a_file_without_a_digest_behind_it_gets_no_place(yard: Yard, line: dict[str, object]) -> None:
    host = Lying(host=yard.host()).lying({"files": ["a"]}, {"size": 1, "from": 0}, b"x", line)
    with pytest.raises(HostError, match="is not what was to come inside a"):
        pull(Agent(host), "/any", yard.folder / "target")
    assert not (yard.folder / "target" / "a").exists()


@pytest.mark.parametrize("more", [b"more", line_of({"size": 0, "from": 0})])
@pytest.mark.parametrize("files", [[], ["a"]])
def test_more_than_announced_is_refused(yard: Yard, more: bytes, files: list[str]) -> None:
    heads = [{"size": 0, "from": 0}, {"sha256": EMPTY}] * len(files)
    host = Lying(host=yard.host()).lying({"files": files}, *heads, more)
    with pytest.raises(HostError, match="more bytes than it announced"):
        pull(Agent(host), "/any", yard.folder / "target")


# --- files that change ------------------------------------------------------------------------------------------------


class Meanwhile(Wire):
    """Something happens on the host when the first bytes of the n-th stream have come."""

    def acts(self, act: Callable[[], object], times: int = 1) -> Meanwhile:
        self.act, self.left = act, times
        return self

    def run(self, command, *, on_stdout=None, **rest):  # type: ignore[no-untyped-def]
        began = []

        def hear(piece: bytes) -> None:
            if "send" in command.argv and self.left and not began:
                self.left -= 1
                began.append(self.act())
            on_stdout(piece)

        return super().run(command, on_stdout=None if on_stdout is None else hear, **rest)


SEVERAL_PIPES = 12 << 20  # more than the pipes between host and reader hold, so that reading goes on while we act


def test_a_file_that_grows_while_it_is_read_comes_as_it_was_at_its_opening(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"log": SEVERAL_PIPES})["log"]

    def grow() -> None:
        with (source / "log").open("ab") as file:
            file.write(b"one line more\n")

    moved = pull(Agent(Meanwhile(host=yard.host()).acts(grow)), str(source), target)
    assert ((target / "log").read_bytes() == content, moved.byte_count) == (True, SEVERAL_PIPES)


def rewrite(path: Path) -> None:
    """Other bytes at the file's two ends: whoever is in its middle has read the old ones and will read the new."""
    with path.open("r+b") as file:
        file.write(b"new beginning")
        file.seek(-13, 2)
        file.write(b"and a new end")


def test_a_file_rewritten_while_it_is_read_is_asked_for_again(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    fill(source, {"a": SEVERAL_PIPES})
    pull(Agent(Meanwhile(host=yard.host()).acts(lambda: rewrite(source / "a"))), str(source), target)
    assert tree(target) == tree(source)


def test_a_file_rewritten_every_time_it_is_read_gets_no_place(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    fill(source, {"a": SEVERAL_PIPES})
    chooser = random.Random(1)

    def again() -> None:
        rewrite(source / "a")
        with (source / "a").open("r+b") as file:
            file.write(chooser.randbytes(8))

    with pytest.raises(ChecksumMismatch, match="a: it changed while it was read, twice; nothing was kept"):
        pull(Agent(Meanwhile(host=yard.host()).acts(again, times=2)), str(source), target)
    assert tree(target) == {}


# --- what is here already ---------------------------------------------------------------------------------------------


def test_a_file_of_equal_size_and_time_with_other_bytes_is_replaced(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 1000})
    fill(target, {"a": 1000}, seed=2)
    os.utime(target / "a", ns=((source / "a").stat().st_atime_ns, (source / "a").stat().st_mtime_ns))
    assert pull(yard.agent(), str(source), target).came == ("a",)
    assert tree(target) == content


def test_a_file_that_another_pull_is_bringing_is_left_to_it(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 1000})
    other = Part.of(target / "a")
    with pytest.raises(HostError, match="another process is bringing this file"):
        pull(yard.agent(), str(source), target)
    other.file.close()
    pull(yard.agent(), str(source), target)
    assert tree(target) == content


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_name_as_long_as_file_systems_take_moves_and_goes_on_where_it_broke(yard: Yard, direction: str) -> None:
    leave_to_system_tests(yard, direction)
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"n" * 255: 900_000, "deep/" + "日" * 85: 5})
    put_program(yard)
    moved = move(direction, Agent(Narrow(host=yard.host()).breaks([400_000])), source, target)
    assert tree(target) == content
    assert moved.byte_count <= 900_005 + 2 * 65_536


def test_unwanted_files_stay_where_they_are(yard: Yard) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    content = fill(source, {"a": 10, "deep/b": 10, "progress.json": 10})
    moved = pull(yard.agent(), str(source), target, without={"progress.json", "absent"})
    assert moved.came == ("a", "deep/b")
    assert tree(target) == {name: content[name] for name in ("a", "deep/b")}


# --- disks and folders ------------------------------------------------------------------------------------------------


def test_a_full_disk_here_is_said_as_such_and_the_pull_goes_on_once_there_is_room(yard: Yard) -> None:
    source = yard.folder / "source"
    content = fill(source, {"a": 600_000, "b": 600_000})
    with mounted(yard.folder / "small") as disk:
        with pytest.raises(OSError, match="No space left on device"):
            pull(yard.agent(), str(source), disk / "target")
        assert (disk / "target" / "a").read_bytes() == content["a"]
        assert not (disk / "target" / "b").exists()
        (disk / "target" / "a").unlink()
        assert pull(yard.agent(), str(source), disk / "target", only=("b",)).byte_count < 600_000
        assert (disk / "target" / "b").read_bytes() == content["b"]


def test_a_full_disk_there_is_refused_with_the_reason(yard: Yard) -> None:
    source = yard.folder / "source"
    fill(source, {"a": 2_000_000})
    with mounted(yard.folder / "small") as disk:
        with pytest.raises(HostRefused, match="No space left on device"):
            push(yard.agent(), source, str(disk / "target"))
        assert not (disk / "target" / "a").exists()


@pytest.mark.parametrize("in_the_way", ["file", "folder"])
def test_what_stands_in_the_way_here_is_an_error_of_this_machine_not_of_the_host(yard: Yard, in_the_way: str) -> None:
    source, target = yard.folder / "source", yard.folder / "target"
    fill(source, {"a/b": 10})
    target.mkdir()
    if in_the_way == "file":
        (target / "a").write_text("")
    else:
        (target / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError, match=r"exists|directory"):
        pull(yard.agent(), str(source), target)
