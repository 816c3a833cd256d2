"""A connection that breaks and corrupts bytes: files are verified, and a transfer resumes where it broke."""

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

from remote.agent.shared.files import partial_path
from remote.hosts.command import Command
from remote.hosts.host_protocol import ByteReader, HostUnreachable
from remote.jobs.job import Agent
from remote.jobs.transfer import ChecksumMismatch, pull, push
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet, wait_for
from tests.support.hosts.migration import install_host_program, read_tree, transfer_files, write_random_files
from tests.support.machines.ssh_client import LOCAL_AND_SSH


def test_a_broken_push_resumes_inside_the_file(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    rng = random.Random(1)
    # Names as long as file systems allow.
    content = write_random_files(source, {"a": 5, "n" * 255: 700_000, "empty": 0, "deep/" + "日" * 85: 900_000, "d": 1})
    total = sum(map(len, content.values()))
    install_host_program(local)
    breaks = [rng.randrange(total // 4) for _ in range(6)]
    wire = SendingHost(host=local.host()).through(*(partial(BreakingStream, left=left) for left in breaks))
    result = push(Agent(wire), source, str(target))
    assert wire.streams == []
    assert read_tree(target) == content
    assert sorted(result.transferred) == sorted(content)
    # The content of a pipe may have to be sent again after a break: at most 64 KiB each time.
    assert total <= result.byte_count <= total + len(breaks) * 2 * 65_536


def test_the_remaining_receiver_of_a_broken_stream_does_not_corrupt_the_next_one(local: LocalFleet) -> None:
    """A server notices late that its client is gone; until then the old receiver still writes bytes."""
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 900_000})["a"]
    install_host_program(local)
    (program,) = Path(local.host().workdir).glob(".onhost-*/remote/agent/jobs/__main__.py")
    digest = hashlib.sha256(content).hexdigest()
    part = Path(partial_path(target / "a", digest[:16]))
    head = json.dumps([{"path": "a", "size": len(content), "sha256": digest, "offset": 0}]).encode()
    arguments = json.dumps({"root": str(target), "stdin_bytes": len(head)})
    argv = [sys.executable, "-I", "-S", str(program), "receive", arguments]
    old = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0)
    assert old.stdin is not None
    old.stdin.write(head + content[:300_000])
    wait_for(lambda: part.exists() and part.stat().st_size >= 200_000, "the first bytes")
    late_stream = partial(ActingStream, act=lambda: old.stdin.write(content[300_000:600_000]))
    result = push(Agent(SendingHost(host=local.host()).through(late_stream)), source, str(target))
    old.stdin.close()
    old.wait()
    assert read_tree(target) == {"a": content}
    assert result.byte_count < len(content)


def test_two_pushes_of_the_same_files_at_once_both_succeed(local: LocalFleet) -> None:
    """Two `inv build` at the same time: the second one finds the same bytes in the file's place."""
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 900_000})
    install_host_program(local)
    interrupted_stream = partial(ActingStream, act=lambda: push(local.agent(), source, str(target)))
    push(Agent(SendingHost(host=local.host()).through(interrupted_stream)), source, str(target))
    assert read_tree(target) == content


class SendingHost(CuttableHost):
    """A host whose n-th stream of received files is wrapped by the n-th of `streams`."""

    def through(self, *streams: Callable[[ByteReader], ByteReader]) -> Self:
        self.streams = list(streams)
        return self

    def run(self, command, *, stdin=None, **rest):  # type: ignore[no-untyped-def]
        if "receive" in command.argv and self.streams:
            stdin = self.streams.pop(0)(stdin)
        return super().run(command, stdin=stdin, **rest)


class BreakingStream:
    """A stream that breaks after `left` bytes of content, which follows the list of files."""

    def __init__(self, source: ByteReader, left: int) -> None:
        self._source, self._left, self._head = source, left, True

    def read(self, size: int, /) -> bytes:
        chunk = self._source.read(size if self._head else min(size, self._left) or 1)
        if not self._head and self._left == 0:
            raise HostUnreachable("the stream broke")
        self._left, self._head = self._left - (0 if self._head else len(chunk)), False
        return chunk


class ActingStream:
    """A stream that calls `act` once, in its middle."""

    def __init__(self, source: ByteReader, act: Callable[[], object]) -> None:
        self._source, self._act, self._reads = source, act, 0

    def read(self, size: int, /) -> bytes:
        self._reads += 1
        if self._reads == 4:
            self._act()
        return self._source.read(size)


def flip_bit(verb: str, times: int) -> Callable[[Command, bytes], bytes]:
    """Return a function that flips one bit in the first `times` streams of that verb."""
    left = [times]

    def garble(command: Command, chunk: bytes) -> bytes:
        if verb in command.argv and left[0] and len(chunk) > 100:
            left[0] -= 1
            position = len(chunk) // 2  # inside the file's bytes, which are longer than its head and digest
            return chunk[:position] + bytes([chunk[position] ^ 1]) + chunk[position + 1 :]
        return chunk

    return garble


@LOCAL_AND_SSH
def test_a_file_with_a_flipped_bit_is_requested_again_and_refused_the_second_time(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 1000, "b": 1000})
    pull(Agent(CuttableHost(host=local.host(), garble=flip_bit("send", 1))), str(source), target)
    assert read_tree(target) == content
    twice = Agent(CuttableHost(host=local.host(), garble=flip_bit("send", 2)))
    with pytest.raises(ChecksumMismatch, match=r"^a: .*twice"):
        pull(twice, str(source), local.folder / "other", only=("a",))
    assert read_tree(local.folder / "other") == {}


class FlippedStream:
    """A stream with one flipped bit in the files' content."""

    def __init__(self, source: ByteReader) -> None:
        self._source, self._pieces = source, 0

    def read(self, size: int, /) -> bytes:
        chunk, self._pieces = self._source.read(size), self._pieces + 1
        return bytes([chunk[0] ^ 1]) + chunk[1:] if self._pieces == 2 else chunk


def test_a_file_corrupted_towards_the_host_is_sent_again_and_refused_the_second_time(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 1000})
    push(Agent(SendingHost(host=local.host()).through(FlippedStream)), source, str(target))
    assert read_tree(target) == content

    twice = SendingHost(host=local.host()).through(FlippedStream, FlippedStream)
    with pytest.raises(ChecksumMismatch, match=r"worker-1.*twice"):
        push(Agent(twice), source, str(local.folder / "other"))
    assert read_tree(local.folder / "other") == {}


@pytest.mark.parametrize("size", [10, 1000, 2000], ids=["shorter", "as-long", "longer"])
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_a_partial_file_with_other_bytes_in_it_is_not_trusted(local: LocalFleet, direction: str, size: int) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"a": 1000})
    target.mkdir()
    tag = "" if direction == "pull" else hashlib.sha256(content["a"]).hexdigest()[:16]
    Path(partial_path(target / "a", tag)).write_bytes(b"?" * size)
    transfer_files(direction, local.agent(), source, target)
    assert read_tree(target) == content
