"""A pull over a stream that ends anywhere: every byte of it is a place where it may break.

The program that sends runs in this process here, so that hundreds of streams take a moment; tests/faults has the same
over real hosts.
"""

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from remote.hosts.command import Command
from remote.hosts.host import Completed, HostUnreachable
from remote.jobs import transfer
from remote.jobs.agent import Agent
from remote.jobs.host_agent.files import VERBS
from remote.jobs.transfer import pull
from tests.support.hosts.migration import fill, tree


@dataclass(kw_only=True)
class Near:
    """A host without processes, whose n-th answer ends after so many bytes (None: whole) and comes in small pieces."""

    name: str = "near"
    workdir: str = "/nowhere"
    python: tuple[str, ...] = ("python3",)
    cuts: Iterator[int | None] = field(default_factory=lambda: iter(()))
    piece: int = 1 << 20
    says_so: bool = True
    asked: list[dict[str, object]] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)

    def run(self, command: Command, *, stdin: bytes, on_stdout: Callable[[bytes], None], **_: object) -> Completed:
        verb, arguments = command.argv[-2:]
        self.asked.append(json.loads(stdin))
        out = io.BytesIO()
        real = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = SimpleNamespace(buffer=io.BytesIO(stdin)), SimpleNamespace(buffer=out)  # type: ignore[assignment]
        try:
            VERBS[verb](json.loads(arguments))
        finally:
            sys.stdin, sys.stdout = real
        cut = next(self.cuts, None)
        self.answers.append(out.getvalue())
        answer = out.getvalue()[:cut]
        for at in range(0, len(answer), self.piece):
            on_stdout(answer[at : at + self.piece])
        if cut is not None and self.says_so:
            raise HostUnreachable("cut")
        return Completed(exit_code=0)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before a second try, and no wait for the disk: a power cut is not among the faults here."""
    monkeypatch.setattr(transfer.time, "sleep", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)


SIZES = {"a": 30, "deep/b": 41, "empty": 0}


@pytest.mark.parametrize("says_so", [True, False], ids=["broken", "with-success-reported"])
def test_a_stream_that_ends_at_any_byte_is_taken_up_there(tmp_path: Path, says_so: bool) -> None:
    content, target = fill(tmp_path / "source", SIZES), tmp_path / "none"
    host = Near()
    pull(Agent(host), str(tmp_path / "source"), target)
    for after in range(len(host.answers[0])):
        target = tmp_path / f"target-{after}"
        host = Near(cuts=iter([after]), says_so=says_so)
        moved = pull(Agent(host), str(tmp_path / "source"), target)
        assert tree(target) == content
        assert sorted(moved.came) == sorted(content)
        assert moved.byte_count == sum(SIZES.values()), "what had come was asked for again"
        assert len(host.asked) == 2


def test_a_pull_that_broke_for_good_at_any_byte_is_taken_up_by_the_next(tmp_path: Path) -> None:
    content = fill(tmp_path / "source", SIZES)
    host = Near()
    pull(Agent(host), str(tmp_path / "source"), tmp_path / "none")
    for after in range(len(host.answers[0])):
        target = tmp_path / f"target-{after}"
        with pytest.raises(HostUnreachable):
            pull(Agent(Near(cuts=iter([after, *[0] * 9]))), str(tmp_path / "source"), target)
        before = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        moved = pull(Agent(Near()), str(tmp_path / "source"), target)
        assert tree(target) == content
        assert moved.byte_count == sum(SIZES.values()) - before


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_however_small_the_pieces_are_the_files_are_whole(tmp_path: Path, piece: int) -> None:
    content = fill(tmp_path / "source", SIZES)
    moved = pull(Agent(Near(piece=piece)), str(tmp_path / "source"), tmp_path / "target")
    assert (tree(tmp_path / "target"), moved.byte_count) == (content, sum(SIZES.values()))


def test_files_that_came_in_one_stream_are_not_asked_for_in_the_next(tmp_path: Path) -> None:
    fill(tmp_path / "source", {"a": 10, "b": 10, "c": 10})
    host = Near()
    pull(Agent(host), str(tmp_path / "source"), tmp_path / "none")
    second = host.answers[0].index(b'{"size"', host.answers[0].index(b'{"size"') + 1)
    host = Near(cuts=iter([second]))
    pull(Agent(host), str(tmp_path / "source"), tmp_path / "target")
    assert [asked["only"] for asked in host.asked] == [None, ["b", "c"]]


def test_what_is_here_is_told_by_its_digest_and_stays(tmp_path: Path) -> None:
    fill(tmp_path / "source", SIZES)
    host = Near()
    pull(Agent(host), str(tmp_path / "source"), tmp_path / "target")
    moved = pull(Agent(host), str(tmp_path / "source"), tmp_path / "target")
    assert (moved.came, sorted(moved.already), moved.byte_count) == ((), sorted(SIZES), 0)
    assert len(host.asked) == 2


def test_what_a_broken_pull_left_of_a_file_that_is_whole_by_now_is_cleared_away(tmp_path: Path) -> None:
    content = fill(tmp_path / "source", {"a": 10})
    fill(tmp_path / "target", {"a": 10})
    (tmp_path / "target" / ".a.part").write_bytes(content["a"][:5])
    assert pull(Agent(Near()), str(tmp_path / "source"), tmp_path / "target").already == ("a",)
    assert tree(tmp_path / "target") == content


def test_a_file_that_goes_away_between_two_streams_is_said(tmp_path: Path) -> None:
    fill(tmp_path / "source", {"a": 10, "b": 10})
    host = Near(cuts=iter([130]))
    agent = Agent(host)
    real = agent.raw

    def raw(*arguments: object, **more: object) -> None:
        if host.asked:
            (tmp_path / "source" / "b").unlink()
        real(*arguments, **more)  # type: ignore[arg-type]

    agent.raw = raw  # type: ignore[method-assign]
    with pytest.raises(transfer.HostError, match="near: b was deleted during the transfer"):
        pull(agent, str(tmp_path / "source"), tmp_path / "target")
