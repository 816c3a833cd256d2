"""A host that sends wrong answers, and files that change while they are read: nothing unverified is stored."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.agent.shared.wire import encode_line
from remote.hosts.base import Completed, HostError
from remote.jobs.agent import Agent
from remote.jobs.transfer import ChecksumMismatch, pull
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet
from tests.support.hosts.migration import read_tree, write_random_files


class LyingHost(CuttableHost):
    """A host that answers `send` with invented lines or bytes."""

    def answering(self, *answer: object) -> LyingHost:
        self.answer = b"".join(part if isinstance(part, bytes) else encode_line(part) for part in answer)
        return self

    def run(self, command, *, on_stdout=None, **rest):  # type: ignore[no-untyped-def]
        if "send" not in command.argv:
            return super().run(command, on_stdout=on_stdout, **rest)
        on_stdout(self.answer)
        return Completed(exit_code=0)


EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "..", "", ".", "a/..", "nul\0", "/"])
def test_a_name_that_leaves_the_folder_is_refused_and_nothing_is_written(local: LocalFleet, path: str) -> None:
    target = local.folder / "in" / "target"
    target.mkdir(parents=True)
    host = LyingHost(host=local.host()).answering({"files": ["good", path]}, {"size": 0, "from": 0}, {"sha256": EMPTY})
    with pytest.raises(HostError, match=re.escape(repr(path))):
        pull(Agent(host), "/any", target)
    assert list((local.folder / "in").rglob("*")) == [target]


@pytest.mark.parametrize("files", [None, 7, "a", [7], [None], {"a": 1}])
def test_an_invalid_list_of_files_is_refused(local: LocalFleet, files: object) -> None:
    with pytest.raises(HostError, match="list of files"):
        pull(Agent(LyingHost(host=local.host()).answering({"files": files})), "/any", local.folder / "target")
    assert not (local.folder / "target").exists()


@pytest.mark.parametrize("files", [["a", "a"], ["a", "b"], ["unwanted"]])
def test_files_that_were_not_requested_are_refused(local: LocalFleet, files: list[str]) -> None:
    host = LyingHost(host=local.host()).answering({"files": files}, {"size": 0, "from": 0}, {"sha256": EMPTY})
    with pytest.raises(HostError, match=r"worker-1: .*files"):
        pull(Agent(host), "/any", local.folder / "target", only=("a", "unwanted"), exclude=("unwanted",))
    assert not (local.folder / "target").exists()


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
def test_a_head_that_describes_no_file_is_refused(local: LocalFleet, line: dict[str, object]) -> None:
    host = LyingHost(host=local.host()).answering({"files": ["a"]}, line)
    with pytest.raises(HostError, match="unexpected answer inside a"):
        pull(Agent(host), "/any", local.folder / "target")
    assert not (local.folder / "target").exists()


@pytest.mark.parametrize("line", [{}, {"sha256": None}, {"sha256": "0"}, {"changed": None}])
def test_a_file_without_a_digest_is_not_stored(local: LocalFleet, line: dict[str, object]) -> None:
    host = LyingHost(host=local.host()).answering({"files": ["a"]}, {"size": 1, "from": 0}, b"x", line)
    with pytest.raises(HostError, match="unexpected answer inside a"):
        pull(Agent(host), "/any", local.folder / "target")
    assert not (local.folder / "target" / "a").exists()


@pytest.mark.parametrize("more", [b"more", encode_line({"size": 0, "from": 0})])
@pytest.mark.parametrize("files", [[], ["a"]])
def test_more_than_announced_is_refused(local: LocalFleet, more: bytes, files: list[str]) -> None:
    heads = [{"size": 0, "from": 0}, {"sha256": EMPTY}] * len(files)
    host = LyingHost(host=local.host()).answering({"files": files}, *heads, more)
    with pytest.raises(HostError, match="more bytes"):
        pull(Agent(host), "/any", local.folder / "target")


class InterferingHost(CuttableHost):
    """A host on which a function runs once the first bytes of a stream have arrived."""

    def during(self, act: Callable[[], object], times: int = 1) -> InterferingHost:
        self.act, self.left = act, times
        return self

    def run(self, command, *, on_stdout=None, **rest):  # type: ignore[no-untyped-def]
        calls = []

        def on_chunk(chunk: bytes) -> None:
            if "send" in command.argv and self.left and not calls:
                self.left -= 1
                calls.append(self.act())
            on_stdout(chunk)

        return super().run(command, on_stdout=None if on_stdout is None else on_chunk, **rest)


SEVERAL_PIPES = 12 << 20  # more than the pipes between host and reader hold, so that reading continues meanwhile


def test_a_file_that_grows_while_it_is_read_arrives_as_it_was_when_opened(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"log": SEVERAL_PIPES})["log"]

    def grow() -> None:
        with (source / "log").open("ab") as file:
            file.write(b"one line more\n")

    result = pull(Agent(InterferingHost(host=local.host()).during(grow)), str(source), target)
    assert ((target / "log").read_bytes() == content, result.byte_count) == (True, SEVERAL_PIPES)


def rewrite(path: Path) -> None:
    """Write other bytes at both ends of the file, so that a reader in its middle gets a mixture."""
    with path.open("r+b") as file:
        file.write(b"new beginning")
        file.seek(-13, 2)
        file.write(b"and a new end")


def test_a_file_rewritten_while_it_is_read_is_requested_again(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    write_random_files(source, {"a": SEVERAL_PIPES})
    pull(Agent(InterferingHost(host=local.host()).during(lambda: rewrite(source / "a"))), str(source), target)
    assert read_tree(target) == read_tree(source)


def test_a_file_rewritten_every_time_it_is_read_is_not_stored(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    write_random_files(source, {"a": SEVERAL_PIPES})
    rng = random.Random(1)

    def rewrite_differently() -> None:
        rewrite(source / "a")
        with (source / "a").open("r+b") as file:
            file.write(rng.randbytes(8))

    with pytest.raises(ChecksumMismatch, match=r"^a: .* twice"):
        pull(Agent(InterferingHost(host=local.host()).during(rewrite_differently, times=2)), str(source), target)
    assert read_tree(target) == {}
