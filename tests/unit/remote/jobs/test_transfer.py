"""Tests of a pull over a stream that breaks at any byte.

The sending program runs in this process, so that hundreds of streams are fast; tests/faults uses real hosts.
"""

import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.agent.jobs.files import VERBS
from remote.agent.shared.wire import encode_line
from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostError, HostUnreachable
from remote.jobs import transfer
from remote.jobs.job import Agent
from remote.jobs.transfer import pull
from tests.support.cases import Case, load_cases
from tests.support.hosts.migration import read_tree, write_random_files


@dataclass(kw_only=True)
class InProcessHost:
    """Host without processes. Its n-th answer ends after `cuts[n]` bytes (None: complete), in pieces."""

    name: str = "near"
    workdir: str = "/nowhere"
    python: tuple[str, ...] = ("python3",)
    cuts: Iterator[int | None] = field(default_factory=lambda: iter(()))
    piece_bytes: int = 1 << 20
    reports_break: bool = True
    requests: list[Any] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)

    def run(self, command: Command, *, stdin: bytes, on_stdout: Callable[[bytes], None], **_: object) -> Completed:
        verb, arguments = command.argv[-2:]
        self.requests.append(json.loads(stdin))
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
        for at in range(0, len(answer), self.piece_bytes):
            on_stdout(answer[at : at + self.piece_bytes])
        if cut is not None and self.reports_break:
            raise HostUnreachable("cut")
        return Completed(exit_code=0)


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip pauses and fsync: the faults here do not include a power cut."""
    monkeypatch.setattr(transfer.time, "sleep", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)


SIZES = {"a": 30, "deep/b": 41, "empty": 0}


@pytest.mark.slow
@pytest.mark.parametrize("reports_break", [True, False], ids=["broken", "with-success-reported"])
@pytest.mark.parametrize("answer", [0, 1], ids=["list", "stream"])
def test_an_answer_that_ends_at_any_byte_is_taken_up_there(tmp_path: Path, answer: int, reports_break: bool) -> None:
    content, target = write_random_files(tmp_path / "source", SIZES), tmp_path / "none"
    host = InProcessHost()
    pull(Agent(host), str(tmp_path / "source"), target)
    for after in range(len(host.answers[answer])):
        target = tmp_path / f"target-{after}"
        host = InProcessHost(cuts=iter([*[None] * answer, after]), reports_break=reports_break)
        moved = pull(Agent(host), str(tmp_path / "source"), target)
        assert read_tree(target) == content
        assert sorted(moved.transferred) == sorted(content)
        assert moved.byte_count == sum(SIZES.values()), "received bytes were requested again"
        assert len(host.requests) == 3 + answer


def test_a_pull_that_broke_for_good_at_any_byte_is_taken_up_by_the_next(tmp_path: Path) -> None:
    content = write_random_files(tmp_path / "source", SIZES)
    host = InProcessHost()
    pull(Agent(host), str(tmp_path / "source"), tmp_path / "none")
    for after in range(len(host.answers[1])):
        target = tmp_path / f"target-{after}"
        with pytest.raises(HostUnreachable):
            pull(Agent(InProcessHost(cuts=iter([None, after, *[0] * 9]))), str(tmp_path / "source"), target)
        before = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        moved = pull(Agent(InProcessHost()), str(tmp_path / "source"), target)
        assert read_tree(target) == content
        assert moved.byte_count == sum(SIZES.values()) - before


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_however_small_the_pieces_are_the_files_are_whole(tmp_path: Path, piece: int) -> None:
    content = write_random_files(tmp_path / "source", SIZES)
    moved = pull(Agent(InProcessHost(piece_bytes=piece)), str(tmp_path / "source"), tmp_path / "target")
    assert (read_tree(tmp_path / "target"), moved.byte_count) == (content, sum(SIZES.values()))


def test_files_that_came_in_one_stream_are_not_asked_for_in_the_next(tmp_path: Path) -> None:
    write_random_files(tmp_path / "source", {"a": 10, "b": 10, "c": 10})
    host = InProcessHost(cuts=iter([None, 15]))
    pull(Agent(host), str(tmp_path / "source"), tmp_path / "target")
    assert [request["only"] for request in host.requests if isinstance(request, dict)] == [None, ["b", "c"]]
    assert [entry["offset"] for entry in host.requests[-1]] == [5, 0]


def test_a_partial_file_of_a_complete_file_is_removed(tmp_path: Path) -> None:
    content = write_random_files(tmp_path / "source", {"a": 10})
    write_random_files(tmp_path / "target", {"a": 10})
    (tmp_path / "target" / ".a.part").write_bytes(content["a"][:5])
    assert pull(Agent(InProcessHost()), str(tmp_path / "source"), tmp_path / "target").already_present == ("a",)
    assert read_tree(tmp_path / "target") == content


def test_a_file_that_is_deleted_between_two_streams_is_named(tmp_path: Path) -> None:
    write_random_files(tmp_path / "source", {"a": 10, "b": 10})
    host = InProcessHost(cuts=iter([None, 15]))
    agent = Agent(host)
    real = agent.call_bytes

    def call_bytes(*arguments: object, **more: object) -> None:
        if len(host.requests) == 2:
            (tmp_path / "source" / "b").unlink()
        real(*arguments, **more)  # type: ignore[arg-type]

    agent.call_bytes = call_bytes  # type: ignore[method-assign]
    with pytest.raises(transfer.HostError, match="near: b "):
        pull(agent, str(tmp_path / "source"), tmp_path / "target")


SURROGATE = {"input": [["good", 1, "DIGEST"], ["\ud800", 1, "DIGEST"]], "expected": "not a path"}  # not YAML


@pytest.mark.parametrize("case", [*load_cases(__file__, "wrong_answers.yaml"), SURROGATE])
def test_a_wrong_answer_is_refused_and_nothing_is_stored(tmp_path: Path, case: Case) -> None:
    files = json.loads(json.dumps(case["input"]).replace("DIGEST", hashlib.sha256().hexdigest()))
    only = None if "good" in str(case["input"]) else ("a", "unwanted")

    def respond(verb: str, *_: object, on_bytes: Callable[[bytes], None], **__: object) -> None:
        on_bytes(encode_line({"files": files}) if verb == "listing" else b"more")

    agent = Agent(InProcessHost())
    agent.call_bytes = respond  # type: ignore[method-assign]
    with pytest.raises(HostError, match="near: ") as caught:
        pull(agent, "/any", tmp_path / "in" / "target", only=only, exclude=("unwanted",))
    assert case["expected"] in str(caught.value)
    assert not isinstance(caught.value, HostUnreachable), "a retry does not help"
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"a"}
    assert case["expected"] == "more bytes" or not (tmp_path / "in" / "target" / "a").exists()
