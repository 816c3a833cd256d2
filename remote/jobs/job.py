"""Detached jobs on any host, which continue without the connection and the operator's laptop.

A job is a folder on the host (see `remote.agent.jobs`), by which any process can follow and cancel it. Its end is
a file with the exit code, written last.

Client of `remote.agent.jobs` on a host; installs it at the first call.

Jobs and transfers use only this class, so a new kind of host only needs `run`.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from types import UnionType
from typing import Any

from remote.agent.shared.wire import EXIT_REFUSED, EXIT_TRUNCATED, decode_line
from remote.hosts.bundle import PYTHON_FLAGS, Program, inline_command, load_program
from remote.hosts.command import Command
from remote.hosts.host_protocol import ByteReader, Completed, Host, HostError, HostUnreachable, check
from remote.hosts.local_program import MAX_OUTPUT_BYTES

_logger = logging.getLogger(__name__)

HOST_AGENT = "remote.agent.jobs"
HOST_AGENT_MODULES = (HOST_AGENT, *(f"remote.agent.shared.{name}" for name in ("files", "wire")))
CLAIM_SEC = 10.0  # a job that has just ended holds its slot for some milliseconds
_CALL_SEC = 60.0
_CHUNK_BYTES = 1 << 16
_MAX_INTEGER_BITS = 63
_EXIT_FILE_MISSING = 2  # Python's exit code for a missing program file


class HostRefused(HostError):
    """Request that the host cannot fulfil: a full disk, a missing file, a path outside its folder."""


class Agent:
    """Jobs and files on one host."""

    def __init__(self, host: Host, agent_program: Program | None = None) -> None:
        """`agent_program` contains `HOST_AGENT_MODULES` and maybe more; None: only these."""
        self.host, self.program = host, agent_program or load_program(*HOST_AGENT_MODULES)
        self._installed = False

    def start(self, job: str, spec: dict[str, Any], slot: str | None, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Start the job in this folder unless it was started before; return its state, or the slot's holder.

        `names`: variables whose values in the job are returned as `environment`.
        """
        arguments: dict[str, Any] = {"job": job, "slot": slot, "claim_sec": CLAIM_SEC}
        answer = self.call_line("start", arguments | ({"tell": list(names)} if names else {}), payload=spec)
        self.field(answer, "state", str)
        return answer

    def cancel(self, job: str, *, grace_sec: float) -> dict[str, Any]:
        """End the job in this folder; return its state after that."""
        return self.call_line("cancel", {"job": job, "grace_sec": grace_sec}, timeout_sec=grace_sec + 30.0)

    def holder(self, slot: str) -> str | None:
        """Return the folder of the job that holds `slot`, a lock file on the host; None if it is free."""
        answer = self.call_line("holder", {"slot": slot})
        holder: str | None = self.field(answer, "holder", str | None)
        if holder is not None and not holder.isprintable():
            raise HostUnreachable(f"{self.host.name}: an answer has no valid holder: {repr(answer)[:200]}")
        return holder

    def tail(self, root: str, path: str, size: int) -> str:
        """Return the last `size` bytes of a file below `root` as text; empty if it does not exist."""
        return str(self.field(self.call_line("tail", {"root": root, "path": path, "size": size}), "text", str))

    def check_disk_space(self) -> None:
        """Write a small file on the host and remove it. Raises HostRefused if the disk is full."""
        self.call_line("room", {"folder": self.host.workdir})

    def free_members(self, job: str, *, grace_sec: float) -> None:
        """Free the other hosts of a job that has ended; a single host has none."""

    def call_lines(
        self,
        verb: str,
        arguments: dict[str, Any],
        *,
        payload: object = None,
        bulk: ByteReader | None = None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
        timeout_sec: float = _CALL_SEC,
        idle_timeout_sec: float | None = None,
    ) -> list[dict[str, Any]]:
        """Call `verb`; return its lines, each passed to `on_line` as it arrives.

        Standard input is `payload` as JSON, then `bulk`. Raises HostRefused, HostUnreachable,
        CommandTimedOut, CommandFailed, and whatever `on_line` raises.
        """
        lines: list[dict[str, Any]] = []
        rest = bytearray()

        def split_lines(piece: bytes) -> None:
            rest.extend(piece)
            while (end := rest.find(b"\n")) >= 0:
                line = self.parse(bytes(rest[:end]))
                del rest[: end + 1]
                lines.append(line)
                if on_line is not None:
                    on_line(line)
            if len(rest) > MAX_OUTPUT_BYTES:
                raise HostUnreachable(f"{self.host.name}: too long a line in answer to {verb}")

        self.call_bytes(
            verb,
            arguments,
            payload=payload,
            on_bytes=split_lines,
            bulk=bulk,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
        )
        return lines

    def call_line(
        self, verb: str, arguments: dict[str, Any], *, payload: object = None, timeout_sec: float = _CALL_SEC
    ) -> dict[str, Any]:
        """Call a verb that answers in exactly one line. No line means a lost stream, whatever the exit code."""
        lines = self.call_lines(verb, arguments, payload=payload, timeout_sec=timeout_sec)
        if len(lines) != 1:
            raise HostUnreachable(f"{self.host.name}: {len(lines)} lines in answer to {verb}, expected one")
        return lines[0]

    def call_bytes(
        self,
        verb: str,
        arguments: dict[str, Any],
        *,
        payload: object,
        on_bytes: Callable[[bytes], None],
        bulk: ByteReader | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> None:
        """Call a verb whose answer `on_bytes` parses and checks. Raises like `call_lines`."""
        head = b"" if payload is None else json.dumps(payload).encode()
        arguments = {**arguments, "stdin_bytes": len(head)}
        argv = (*self.host.python, *PYTHON_FLAGS, self.path(f"{HOST_AGENT}.__main__"), verb, json.dumps(arguments))
        command = Command(argv=argv)

        def run() -> Completed:
            chunks = chain([head], iter(partial(bulk.read, _CHUNK_BYTES), b"")) if bulk is not None else None
            return self.host.run(
                command,
                stdin=head or None if chunks is None else ByteStream(chunks),
                on_stdout=on_bytes,
                timeout_sec=timeout_sec,
                idle_timeout_sec=idle_timeout_sec,
            )

        if bulk is not None and not self._installed:
            self._install()  # before the call: the stream cannot be rewound for a second one
        completed = run()
        _logger.debug("%s: %s: exit code %d", self.host.name, verb, completed.exit_code)
        if completed.exit_code == _EXIT_FILE_MISSING and self.program.folder.encode() in completed.stderr:
            self._install()
            completed = run()
        self._check(command, completed)
        self._installed = True

    def _check(self, command: Command, completed: Completed) -> None:
        message = f"{self.host.name}: {completed.stderr.decode(errors='replace').strip()}"
        if completed.exit_code == EXIT_REFUSED:
            raise HostRefused(message)
        if completed.exit_code == EXIT_TRUNCATED:
            raise HostUnreachable(message)
        check(self.host, command, completed)

    def parse(self, line: bytes) -> dict[str, Any]:
        """Parse a line of the host's answer. Raises HostUnreachable if its checksum is wrong."""
        try:
            return decode_line(line)
        except (ValueError, RecursionError) as error:
            raise HostUnreachable(f"{self.host.name}: an answer is corrupt: {line[:80]!r}") from error

    def field(self, line: Mapping[str, Any], name: str, kind: type | UnionType) -> Any:
        """Return a field of an answer. Raises HostUnreachable if it is not of this kind: a host may send anything."""
        value = line.get(name, ...)
        if not isinstance(value, kind) or (isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS):
            raise HostUnreachable(f"{self.host.name}: an answer has no valid {name}: {repr(line)[:200]}")
        return value

    def path(self, module: str) -> str:
        """Return the path of the program's `module` on the host. Raises KeyError for another module."""
        return f"{self.host.workdir}/{self.program.path(module)}"

    def _install(self) -> None:
        content = self.program.content
        arguments = (self.host.workdir, self.program.folder, str(len(content)))
        command = inline_command(self.host, "remote.agent.scripts.install", *arguments)
        self._check(command, self.host.run(command, stdin=content, timeout_sec=_CALL_SEC))
        self._installed = True


class ByteStream:
    """Chunks as one ByteReader, which counts the bytes that were read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest, self.byte_count = chunks, b"", 0

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            self._rest = next(self._chunks, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.byte_count += len(piece)
        return piece


LOG_FILE = "log.txt"


class JobState(Enum):
    """State of a job. LOST: its supervisor died without writing an end."""

    ABSENT = "absent"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


_STATES = frozenset(state.value for state in JobState)
_STATUS_TYPES: Mapping[str, Any] = {
    "exit_code": int | None,
    "signal": int | None,
    "why": str | None,
    "wall_time_sec": float | int | None,
}


class HostBusy(HostError):
    """Slot held by another job; `holder` is its folder on the host."""

    def __init__(self, host: str, holder: str) -> None:
        super().__init__(f"{host}: busy with {holder}")
        self.holder = holder


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Command of a job, and its limits. `files` (name to text) are written into the job's folder before the start.

    The process group gets SIGTERM after `deadline_sec`, and SIGKILL `grace_sec` later.
    """

    command: Command
    deadline_sec: float
    grace_sec: float = 25.0
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.command.secrets:
            raise ValueError("a job's command is written to disk, it must not have secrets")


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Observed state of a job. The fields after `progress` are set once it has ended.

    `why` is exited, deadline, cancelled (by `Job.cancel`) or terminated (a SIGTERM from the host itself).
    """

    state: JobState
    progress: dict[str, Any] | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None
    wall_time_sec: float | None = None


class Job:
    """A job in the absolute `folder` on the agent's host. `slot`: lock file that at most one running job holds."""

    def __init__(self, agent: Agent, folder: str, *, slot: str | None = None) -> None:
        self.agent, self.folder, self.slot = agent, folder, slot

    def start(self, spec: JobSpec) -> JobStatus:
        """Start the job unless it was started before; return its status. Raises HostBusy, and like `Agent`."""
        answer = self.agent.start(
            self.folder,
            {
                "argv": list(spec.command.argv),
                "environment": dict(spec.command.environment),
                "folder": spec.command.folder,
                "deadline_sec": spec.deadline_sec,
                "grace_sec": spec.grace_sec,
                "files": dict(spec.files),
            },
            slot=self.slot,
        )
        if answer["state"] == "busy":
            raise HostBusy(self.agent.host.name, self.agent.field(answer, "holder", str))
        return self._parse_status(answer)

    def status(self) -> JobStatus:
        return self.watch(lambda _: None, duration_sec=0.0)

    def watch(
        self,
        on_status: Callable[[JobStatus], None],
        *,
        progress: str = "progress.json",
        interval_sec: float = 1.0,
        duration_sec: float = 300.0,
        silence_sec: float = 20.0,
    ) -> JobStatus:
        """Follow the job over one stream until it ends or `duration_sec` has passed; return the last status.

        `progress` is a JSON file in the job's folder; each status has its content. Raises HostUnreachable or
        CommandTimedOut if the stream breaks or is silent; the job continues, so the caller may retry. An exception
        from `on_status` ends the call and is raised.
        """
        last: JobStatus | None = None

        def on_line(line: dict[str, Any]) -> None:
            nonlocal last
            last = self._parse_status(line)
            on_status(last)

        self.agent.call_lines(
            "watch",
            {"job": self.folder, "progress": progress, "every_sec": interval_sec, "for_sec": duration_sec},
            on_line=on_line,
            timeout_sec=duration_sec + silence_sec,
            idle_timeout_sec=interval_sec + silence_sec,
        )
        if last is None:  # a transport that loses a stream may report success
            raise HostUnreachable(f"{self.agent.host.name}: no answer about {self.folder}")
        return last

    def cancel(self, *, grace_sec: float = 25.0) -> JobStatus:
        """Interrupt the job, which is killed after its spec's grace. `grace_sec` limits the wait for its end."""
        return self._parse_status(self.agent.cancel(self.folder, grace_sec=grace_sec))

    def log_tail(self) -> list[str]:
        """Fetch the last lines of the command's output, at most 4096 bytes."""
        return self.agent.tail(self.folder, LOG_FILE, 4096).splitlines()

    def _parse_status(self, line: Mapping[str, Any]) -> JobStatus:
        """Check an answer, which the host may have made up. Raises HostUnreachable."""
        state = self.agent.field(line, "state", str)
        if state not in _STATES:
            raise HostUnreachable(f"{self.agent.host.name}: unknown state {state[:40]!r} of {self.folder}")
        values = {name: self.agent.field({name: None, **line}, name, kind) for name, kind in _STATUS_TYPES.items()}
        progress = line.get("progress")
        return JobStatus(state=JobState(state), progress=progress if isinstance(progress, dict) else None, **values)


def slot_path(host: Host) -> str:
    """Return the lock file that limits a host to one trial at a time."""
    return f"{host.workdir}/slot"
