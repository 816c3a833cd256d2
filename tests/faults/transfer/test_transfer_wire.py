"""A wire that breaks and spoils bytes: what arrives is verified, and goes on where it broke."""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from remote.hosts.command import Command
from remote.hosts.host import ByteReader, HostUnreachable
from remote.jobs.agent import Agent
from remote.jobs.host_agent.files import part_of
from remote.jobs.transfer import ChecksumMismatch, pull, push
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet, wait_for
from tests.support.hosts.migration import CUT_UNDER_SMALL_FILES, Narrow, fill, move, put_program, tree


@CUT_UNDER_SMALL_FILES
def test_a_broken_transfer_goes_on_inside_the_file_it_broke_in(local: LocalFleet, direction: str) -> None:
    source, target = local.folder / "source", local.folder / "target"
    chooser = random.Random(1)
    # Names as long as file systems take.
    content = fill(source, {"a": 5, "n" * 255: 700_000, "empty": 0, "deep/" + "日" * 85: 900_000, "d": 1})
    total = sum(map(len, content.values()))
    put_program(local)
    breaks = [chooser.randrange(total // 4) for _ in range(6)]
    wire = Narrow(host=local.host()).breaks(list(breaks))

    moved = move(direction, Agent(wire), source, target)
    assert wire.after == []
    assert tree(target) == content
    assert sorted(moved.came) == sorted(content)
    # What was in a pipe when the wire broke may have to be sent again: 64 KiB at most, each time.
    assert total <= moved.byte_count <= total + len(breaks) * 2 * 65_536
    if direction == "pull":
        assert moved.byte_count == total


@CUT_UNDER_SMALL_FILES
def test_a_transfer_that_broke_for_good_is_taken_up_where_it_was(local: LocalFleet, direction: str) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 200_000, "b": 2_000_000})
    put_program(local)
    wire = Narrow(host=local.host()).breaks([700_000, *[0] * 9])
    with pytest.raises(HostUnreachable):
        move(direction, Agent(wire), source, target)
    assert not (target / "b").exists()
    moved = move(direction, local.agent(), source, target)
    assert tree(target) == content
    assert moved.byte_count <= 2_200_000 - 700_000 + 2 * 65_536


def test_a_stream_lost_with_success_reported_is_asked_for_again_and_not_for_ever(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 1000})

    put_program(local)
    left = [2]

    def swallow(_: Command, piece: bytes) -> bytes:
        left[0] -= 1
        return piece[:-1] if left[0] >= 0 else piece

    with pytest.raises(HostUnreachable, match="the stream ended before its list of files"):
        pull(
            Agent(CuttableHost(host=local.host(), garble=lambda c, p: b"" if "send" in c.argv else p)),
            str(source),
            target,
        )
    moved = pull(Agent(CuttableHost(host=local.host(), garble=swallow)), str(source), target, timeout_sec=20.0)
    assert tree(target) == content
    assert moved.byte_count == 1000


def test_the_receiver_of_a_broken_stream_that_lives_on_does_not_spoil_the_next_one(local: LocalFleet) -> None:
    """A server learns late that its client is gone; until then the old receiver still has bytes to write."""
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 900_000})["a"]
    put_program(local)
    (program,) = Path(local.host().workdir).glob(".onhost-*/remote/jobs/host_agent/__main__.py")
    digest = hashlib.sha256(content).hexdigest()
    part = Path(part_of(target / "a", digest[:16]))
    head = json.dumps([{"path": "a", "size": len(content), "sha256": digest, "offset": 0}]).encode()
    arguments = json.dumps({"root": str(target), "stdin_bytes": len(head)})
    argv = [sys.executable, "-I", "-S", str(program), "receive", arguments]
    old = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0)
    assert old.stdin is not None
    old.stdin.write(head + content[:300_000])
    wait_for(lambda: part.exists() and part.stat().st_size >= 200_000, "the first bytes")
    late = partial(Between, act=lambda: old.stdin.write(content[300_000:600_000]))
    moved = push(Agent(Sending(host=local.host()).through(late)), source, str(target))
    old.stdin.close()
    old.wait()
    assert tree(target) == {"a": content}
    assert moved.byte_count < len(content)


def test_two_pushes_of_the_same_files_at_once_both_end_well(local: LocalFleet) -> None:
    """As two `inv build` typed at once: who comes second to a file's place finds these very bytes there."""
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 900_000})
    put_program(local)
    overtaken = partial(Between, act=lambda: push(local.agent(), source, str(target)))
    push(Agent(Sending(host=local.host()).through(overtaken)), source, str(target))
    assert tree(target) == content


class Sending(CuttableHost):
    """Its n-th stream of files towards the host comes through the n-th of these."""

    def through(self, *streams: Callable[[ByteReader], ByteReader]) -> Self:
        self.streams = list(streams)
        return self

    def run(self, command, *, stdin=None, **rest):  # type: ignore[no-untyped-def]
        if "receive" in command.argv and self.streams:
            stdin = self.streams.pop(0)(stdin)
        return super().run(command, stdin=stdin, **rest)


class Between:
    """A stream in the middle of which something happens, once."""

    def __init__(self, source: ByteReader, act: Callable[[], object]) -> None:
        self._source, self._act, self._reads = source, act, 0

    def read(self, size: int, /) -> bytes:
        self._reads += 1
        if self._reads == 4:
            self._act()
        return self._source.read(size)


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


def test_a_byte_flipped_on_its_way_is_asked_for_again(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 1000, "b": 1000})
    pull(Agent(CuttableHost(host=local.host(), garble=flipping("send", 1))), str(source), target)
    assert tree(target) == content


def test_a_file_that_arrives_wrong_twice_is_refused_and_nothing_is_kept(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    fill(source, {"a": 1000})
    with pytest.raises(ChecksumMismatch, match="a: its bytes do not match its sha256, twice"):
        pull(Agent(CuttableHost(host=local.host(), garble=flipping("send", 2))), str(source), target)
    assert tree(target) == {}


class Spoilt:
    """A stream with one bit of its bulk flipped."""

    def __init__(self, source: ByteReader) -> None:
        self._source, self._pieces = source, 0

    def read(self, size: int, /) -> bytes:
        piece, self._pieces = self._source.read(size), self._pieces + 1
        return bytes([piece[0] ^ 1]) + piece[1:] if self._pieces == 2 else piece


def test_a_byte_flipped_towards_the_host_is_sent_again_and_refused_the_second_time(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 1000})
    push(Agent(Sending(host=local.host()).through(Spoilt)), source, str(target))
    assert tree(target) == content

    twice = Sending(host=local.host()).through(Spoilt, Spoilt)
    with pytest.raises(ChecksumMismatch, match="arrived on worker-1 with a wrong sha256, twice"):
        push(Agent(twice), source, str(local.folder / "other"))
    assert tree(local.folder / "other") == {}


@pytest.mark.parametrize("size", [10, 1000, 2000], ids=["shorter", "as-long", "longer"])
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_partial_file_with_other_bytes_in_it_is_not_trusted(local: LocalFleet, direction: str, size: int) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"a": 1000})
    target.mkdir()
    tag = "" if direction == "pull" else hashlib.sha256(content["a"]).hexdigest()[:16]
    Path(part_of(target / "a", tag)).write_bytes(b"?" * size)
    move(direction, local.agent(), source, target)
    assert tree(target) == content
