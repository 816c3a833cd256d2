"""A host that lies, and files that change while they are read: nothing goes elsewhere, or gets a place unproven."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.hosts.host import Completed, HostError
from remote.jobs.agent import Agent
from remote.jobs.host_agent.util import line_of
from remote.jobs.transfer import ChecksumMismatch, pull
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet
from tests.support.hosts.migration import fill, tree


class Lying(CuttableHost):
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
def test_a_name_that_leaves_the_folder_is_refused_and_nothing_is_written(local: LocalFleet, path: str) -> None:
    target = local.folder / "in" / "target"
    target.mkdir(parents=True)
    host = Lying(host=local.host()).lying({"files": ["good", path]}, {"size": 0, "from": 0}, {"sha256": EMPTY})
    with pytest.raises(HostError, match="is not a path inside the folder; nothing was taken"):
        pull(Agent(host), "/any", target)
    assert list((local.folder / "in").rglob("*")) == [target]


@pytest.mark.parametrize("files", [None, 7, "a", [7], [None], {"a": 1}])
def test_a_list_that_is_none_of_names_is_refused(local: LocalFleet, files: object) -> None:
    with pytest.raises(HostError, match="unexpected answer before its list of files"):
        pull(Agent(Lying(host=local.host()).lying({"files": files})), "/any", local.folder / "target")
    assert not (local.folder / "target").exists()


@pytest.mark.parametrize("files", [["a", "a"], ["a", "b"], ["unwanted"]])
def test_files_that_nobody_asked_for_are_refused(local: LocalFleet, files: list[str]) -> None:
    host = Lying(host=local.host()).lying({"files": files}, {"size": 0, "from": 0}, {"sha256": EMPTY})
    with pytest.raises(HostError, match="other files than it was asked for; nothing was taken"):
        pull(Agent(host), "/any", local.folder / "target", only=("a", "unwanted"), without=("unwanted",))
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
    host = Lying(host=local.host()).lying({"files": ["a"]}, line)
    with pytest.raises(HostError, match="unexpected answer inside a"):
        pull(Agent(host), "/any", local.folder / "target")
    assert not (local.folder / "target").exists()


@pytest.mark.parametrize("line", [{}, {"sha256": None}, {"sha256": "0"}, {"changed": None}])
def test_a_file_without_a_digest_behind_it_gets_no_place(local: LocalFleet, line: dict[str, object]) -> None:
    host = Lying(host=local.host()).lying({"files": ["a"]}, {"size": 1, "from": 0}, b"x", line)
    with pytest.raises(HostError, match="unexpected answer inside a"):
        pull(Agent(host), "/any", local.folder / "target")
    assert not (local.folder / "target" / "a").exists()


@pytest.mark.parametrize("more", [b"more", line_of({"size": 0, "from": 0})])
@pytest.mark.parametrize("files", [[], ["a"]])
def test_more_than_announced_is_refused(local: LocalFleet, more: bytes, files: list[str]) -> None:
    heads = [{"size": 0, "from": 0}, {"sha256": EMPTY}] * len(files)
    host = Lying(host=local.host()).lying({"files": files}, *heads, more)
    with pytest.raises(HostError, match="more bytes than it announced"):
        pull(Agent(host), "/any", local.folder / "target")


class Meanwhile(CuttableHost):
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


def test_a_file_that_grows_while_it_is_read_comes_as_it_was_at_its_opening(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = fill(source, {"log": SEVERAL_PIPES})["log"]

    def grow() -> None:
        with (source / "log").open("ab") as file:
            file.write(b"one line more\n")

    moved = pull(Agent(Meanwhile(host=local.host()).acts(grow)), str(source), target)
    assert ((target / "log").read_bytes() == content, moved.byte_count) == (True, SEVERAL_PIPES)


def rewrite(path: Path) -> None:
    """Other bytes at the file's two ends: whoever is in its middle has read the old ones and will read the new."""
    with path.open("r+b") as file:
        file.write(b"new beginning")
        file.seek(-13, 2)
        file.write(b"and a new end")


def test_a_file_rewritten_while_it_is_read_is_asked_for_again(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    fill(source, {"a": SEVERAL_PIPES})
    pull(Agent(Meanwhile(host=local.host()).acts(lambda: rewrite(source / "a"))), str(source), target)
    assert tree(target) == tree(source)


def test_a_file_rewritten_every_time_it_is_read_gets_no_place(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    fill(source, {"a": SEVERAL_PIPES})
    chooser = random.Random(1)

    def again() -> None:
        rewrite(source / "a")
        with (source / "a").open("r+b") as file:
            file.write(chooser.randbytes(8))

    with pytest.raises(ChecksumMismatch, match="a: it changed while it was read, twice; nothing was kept"):
        pull(Agent(Meanwhile(host=local.host()).acts(again, times=2)), str(source), target)
    assert tree(target) == {}
