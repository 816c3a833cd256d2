"""Tests of the host agent's client against answers that a transport lost or changed."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from remote.agent.shared.wire import encode_line
from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostUnreachable
from remote.jobs import transfer
from remote.jobs.job import Agent, Job, JobSpec, JobState
from remote.jobs.transfer import push

RUNNING, ENDED = encode_line({"state": "running"}), encode_line({"state": "ended", "exit_code": 0, "why": "exited"})
HOLDER = encode_line({"holder": "/w/job"})


@dataclass(kw_only=True)
class AnsweringHost:
    """Host that reports success for each command and prints a fixed answer, in pieces of `piece_bytes`."""

    answer: bytes
    name: str = "far"
    workdir: str = "/w"
    python: tuple[str, ...] = ("python3",)
    piece_bytes: int = 1 << 20
    commands: list[Command] = field(default_factory=list)

    def run(self, command: Command, *, on_stdout: Callable[[bytes], None], **_: object) -> Completed:
        self.commands.append(command)
        for start in range(0, len(self.answer), self.piece_bytes):
            on_stdout(self.answer[start : start + self.piece_bytes])
        return Completed(exit_code=0)


MADE_UP = (b"[]", b"null", b'{"holder": 1, "text": null}', b"{}", b"[" * 200_000, b'{"holder": "a\\u0000"}')


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", HOLDER[:-2], HOLDER[:-1], HOLDER.replace(b"job", b"jab"), HOLDER + HOLDER, b"\n", b"x" * 20 + b"\n"),
        *(b"%08x %s\n" % (zlib.crc32(answer), answer) for answer in MADE_UP),
    ],
)
def test_a_lost_or_changed_line_is_a_broken_stream_whatever_the_exit_code(answer: bytes) -> None:
    agent = Agent(AnsweringHost(answer=answer))
    for call in (lambda: agent.holder("/w/slot"), Job(agent, "/w/job").status, Job(agent, "/w/job").log_tail):
        with pytest.raises(HostUnreachable):
            call()


def test_a_watch_whose_last_lines_are_lost_ends_with_an_earlier_state() -> None:
    for lines, state in (([RUNNING, ENDED], JobState.ENDED), ([RUNNING], JobState.RUNNING)):
        host = AnsweringHost(answer=b"".join(lines), piece_bytes=7)
        assert Job(Agent(host), "/w/job").watch(lambda _: None).state is state


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"state": None},
        {"state": ["ended"]},
        {"state": "finished"},
        {"state": "ended", "exit_code": "0"},
        {"state": "ended", "wall_time_sec": {}},
        {"state": "ended", "wall_time_sec": 10**400},
        {"state": "busy", "holder": 7},
    ],
)
def test_a_made_up_state_of_a_job_is_a_broken_stream(document: dict[str, object]) -> None:
    job = Job(Agent(AnsweringHost(answer=encode_line(document))), "/w/job", slot="/w/slot")
    spec = JobSpec(command=Command(argv=("true",)), deadline_sec=1.0)
    for call in (lambda: job.start(spec), job.status, job.cancel):
        with pytest.raises(HostUnreachable):
            call()


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"path": "b", "have": 0, "whole": True},
        {"path": "a", "have": None},
        {"path": "a", "have": -1},
        {"path": ["a"], "have": 1},
    ],
)
def test_a_made_up_list_of_files_is_a_broken_stream(
    line: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer.time, "sleep", lambda _sec: None)
    (tmp_path / "a").write_bytes(b"content")
    with pytest.raises(HostUnreachable):
        push(Agent(AnsweringHost(answer=encode_line(line))), tmp_path, "/w/files")
