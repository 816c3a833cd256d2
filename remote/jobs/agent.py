"""Calls the program `remote.jobs.host_agent` on a host; installs it the first time.

Jobs and transfers go through this class, so a new kind of host needs no more than `run`.
"""

import json
import zlib
from collections.abc import Callable
from typing import Any

from remote.hosts.bundle import PYTHON_FLAGS, Program, inline_command, program
from remote.hosts.command import Command
from remote.hosts.host import ByteReader, Completed, Host, HostError, HostUnreachable, check
from remote.hosts.process import MOST_KEPT_BYTES
from remote.jobs.host_agent.util import CUT_SHORT, REFUSED

ONHOST = "remote.jobs.host_agent"
_CALL_SEC = 60.0
_CANNOT_OPEN = 2  # Python's own exit code for a program file that is not there


class HostRefused(HostError):
    """The host cannot do what was asked: a full disk, a missing file, a path outside its folder."""


class Agent:
    """One host with jobs and files."""

    def __init__(self, host: Host, delivered: Program | None = None) -> None:
        """`delivered` holds the package `ONHOST` and may hold more; None is that package alone."""
        self.host, self.program = host, delivered or program(ONHOST)
        self._installed = False

    def start(
        self, job: str, spec: dict[str, Any], *, slot: str | None, claim_sec: float, tell: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Start the job at this folder unless it was started before; what it is now, or which job holds the slot.

        `tell`: variables of its environment that the answer's `environment` gives as the job got them.
        """
        arguments: dict[str, Any] = {"job": job, "slot": slot, "claim_sec": claim_sec}
        return self.line("start", arguments | ({"tell": list(tell)} if tell else {}), payload=spec)

    def cancel(self, job: str, *, grace_sec: float) -> dict[str, Any]:
        """End the job at this folder; what it is then."""
        return self.line("cancel", {"job": job, "grace_sec": grace_sec}, timeout_sec=grace_sec + 30.0)

    def holder(self, slot: str) -> str | None:
        """The folder of the job that holds `slot`, a lock file on the host; None when it is free."""
        holder = self.line("holder", {"slot": slot})["holder"]
        return None if holder is None else str(holder)

    def check_room(self) -> None:
        """Write a little on the host, and remove it. Raises HostRefused where its disk is full."""
        self.line("room", {"folder": self.host.workdir})

    def lines(
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
        """Call `verb`; return its lines, each handed to `on_line` as it arrives.

        `payload` goes first on standard input as JSON, then `bulk`. Raises HostRefused, HostUnreachable,
        CommandTimedOut, CommandFailed, and whatever `on_line` raises.
        """
        lines: list[dict[str, Any]] = []
        rest = bytearray()

        def hear(piece: bytes) -> None:
            rest.extend(piece)
            while (end := rest.find(b"\n")) >= 0:
                line = self.parse(bytes(rest[:end]))
                del rest[: end + 1]
                lines.append(line)
                if on_line is not None:
                    on_line(line)
            if len(rest) > MOST_KEPT_BYTES:
                raise HostUnreachable(f"{self.host.name}: a line without end in answer to {verb}")

        self.raw(
            verb,
            arguments,
            payload=payload,
            on_bytes=hear,
            bulk=bulk,
            proves_itself=False,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
        )
        return lines

    def line(
        self, verb: str, arguments: dict[str, Any], *, payload: object = None, timeout_sec: float = _CALL_SEC
    ) -> dict[str, Any]:
        """Call a verb that answers in exactly one line. No line is a lost stream, whatever the exit code."""
        lines = self.lines(verb, arguments, payload=payload, timeout_sec=timeout_sec)
        if len(lines) != 1:
            raise HostUnreachable(f"{self.host.name}: {len(lines)} lines in answer to {verb}, expected one")
        return lines[0]

    def raw(
        self,
        verb: str,
        arguments: dict[str, Any],
        *,
        payload: object,
        on_bytes: Callable[[bytes], None],
        bulk: ByteReader | None = None,
        proves_itself: bool = True,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> None:
        """Call a verb whose answer `on_bytes` reads and checks. Raises as `lines` does."""
        head = b"" if payload is None else json.dumps(payload).encode()
        arguments = {**arguments, "stdin_bytes": len(head)}
        argv = (*self.host.python, *PYTHON_FLAGS, self.path(f"{ONHOST}.__main__"), verb, json.dumps(arguments))
        command = Command(argv=argv, proves_itself=proves_itself)

        def run() -> Completed:
            return self.host.run(
                command,
                stdin=_Joined(head, bulk) if bulk is not None else head or None,
                on_stdout=on_bytes,
                timeout_sec=timeout_sec,
                idle_timeout_sec=idle_timeout_sec,
            )

        if bulk is not None and not self._installed:
            self._install()  # before the call: the stream cannot be rewound for a second one
        completed = run()
        if completed.exit_code == _CANNOT_OPEN and self.program.folder.encode() in completed.stderr:
            self._install()
            completed = run()
        self._check(command, completed)
        self._installed = True

    def _check(self, command: Command, completed: Completed) -> None:
        complaint = f"{self.host.name}: {completed.stderr.decode(errors='replace').strip()}"
        if completed.exit_code == REFUSED:
            raise HostRefused(complaint)
        if completed.exit_code == CUT_SHORT:
            raise HostUnreachable(complaint)
        check(self.host, command, completed)

    def parse(self, line: bytes) -> dict[str, Any]:
        """The document in a line of the host's answer. Raises HostUnreachable if its check sum is wrong."""
        check_sum, _, text = line.partition(b" ")
        if check_sum != b"%08x" % zlib.crc32(text):
            raise HostUnreachable(f"{self.host.name}: an answer was garbled on its way: {line[:80]!r}")
        document: dict[str, Any] = json.loads(text)
        return document

    def path(self, module: str) -> str:
        """Where `module` of the program is on the host. Raises KeyError for one that is not in it."""
        return f"{self.host.workdir}/{self.program.path(module)}"

    def _install(self) -> None:
        content = self.program.content
        place = (self.host.workdir, self.program.folder, str(len(content)))
        command = inline_command(self.host, f"{ONHOST}.install", *place)
        self._check(command, self.host.run(command, stdin=content, timeout_sec=_CALL_SEC))
        self._installed = True


class _Joined:
    """`head` followed by `rest` as one Readable."""

    def __init__(self, head: bytes, rest: ByteReader) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int, /) -> bytes:
        if self._head:
            piece, self._head = self._head[:size], self._head[size:]
            return piece
        return self._rest.read(size)
