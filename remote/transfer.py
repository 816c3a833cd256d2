"""Verified, resumable movement of folders between the operator's machine and any host.

Every file is announced with its size and sha256 before it moves, kept as a partial file beside its place while it
does, and renamed only when its bytes match. A broken stream costs the bytes still in flight: the next try asks for
the rest, file by file and inside a file. Names that would leave the folder are refused, whoever sent them.

Not covered: links and special files (left out), permissions (results and inputs need none), files that change while
they are read (they fail their checksum and are asked for once more).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from remote.agent import Agent
from remote.host import CommandTimedOut, HostError, HostUnreachable
from remote.onhost import Refusal, digest_of, inside, part_of, sync_folder

_IDLE_SEC = 30.0
_PIECE = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_FRUITLESS_TRIES = 4  # in a row, without one byte of progress


class ChecksumMismatch(HostError):
    """A file arrived complete and wrong, twice; nothing was put in its place."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a folder: its path below it, size in bytes and sha256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a transfer did: the paths that moved, those that were there already, and the bytes that crossed the wire."""

    came: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    byte_count: int = 0


class _Patience:
    """How long a broken transfer is taken up again: until its deadline, while the tries in a row bring anything."""

    def __init__(self, host: str, timeout_sec: float) -> None:
        self._host, self._timeout_sec = host, timeout_sec
        self._deadline = time.monotonic() + timeout_sec
        self._fruitless = 0

    def left_sec(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CommandTimedOut(f"{self._host}: transfer not done after {self._timeout_sec:g} s")
        return left

    def after(self, error: HostError, *, progressed: bool) -> None:
        """Return when another try is due; raises `error` when there will be none."""
        self._fruitless = 0 if progressed else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_TRIES or time.monotonic() >= self._deadline:
            raise error
        time.sleep(min(2.0**self._fruitless, 10.0) / 10)


@dataclass(kw_only=True)
class _Pull:
    """The state of one pull: which files are still wanted, and the open partial file the stream is writing to."""

    into: Path
    wanted: list[FileEntry]
    came: list[str] = field(default_factory=list)
    byte_count: int = 0
    file: BinaryIO | None = None
    mismatched: set[str] = field(default_factory=set)

    def ranges(self) -> list[dict[str, object]]:
        """What to ask for: the rest of each wanted file."""
        asked: list[dict[str, object]] = []
        for entry in self.wanted:
            part = part_of(inside(str(self.into), entry.path), entry.sha256)
            have = min(part.stat().st_size, entry.size) if part.is_file() else 0
            asked.append({"path": entry.path, "offset": have, "length": entry.size - have})
        return asked

    def take(self, piece: bytes) -> None:
        """Bytes off the stream: they belong to the wanted files, in order."""
        view = memoryview(piece)
        self.byte_count += len(piece)
        while view:
            file = self._current()
            if file is None:
                raise HostError("the host sent more bytes than it announced")
            room = self.wanted[0].size - file.tell()
            file.write(view[:room])
            view = view[room:]
            self.finish_complete()

    def finish_complete(self) -> None:
        """Put every wanted file whose bytes are all here into its place; a wrong one is dropped and asked for again."""
        while self.wanted:
            file = self._current()
            entry = self.wanted[0]
            if file is None or file.tell() < entry.size:
                return
            self.close()
            path = inside(str(self.into), entry.path)
            part = part_of(path, entry.sha256)
            if digest_of(part) == (entry.size, entry.sha256):
                part.replace(path)
                sync_folder(path.parent)
                self.wanted.pop(0)
                self.came.append(entry.path)
                continue
            part.unlink()
            if entry.path in self.mismatched:
                raise ChecksumMismatch(f"{entry.path}: its bytes do not match its sha256, twice; nothing was kept")
            self.mismatched.add(entry.path)
            raise HostUnreachable(f"{entry.path}: its bytes do not match its sha256; asking again")

    def close(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            with file:
                file.flush()
                os.fsync(file.fileno())

    def _current(self) -> BinaryIO | None:
        if self.file is None and self.wanted:
            path = inside(str(self.into), self.wanted[0].path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = part_of(path, self.wanted[0].sha256).open("ab")
        return self.file


def manifest(agent: Agent, root: str, *, timeout_sec: float = 600.0) -> list[FileEntry]:
    """The regular files below `root` on the host. Raises HostError for names that leave it, and as `Agent`."""
    lines = agent.lines("manifest", {"root": root}, timeout_sec=timeout_sec)
    if not lines or not lines.pop().get("end"):
        raise HostUnreachable(f"{agent.host.name}: the list of files below {root} was cut short")
    return [_entry(agent, line) for line in lines]


def _entry(agent: Agent, line: dict[str, Any]) -> FileEntry:
    path, size, sha256 = line.get("path"), line.get("size"), line.get("sha256")
    if isinstance(path, str) and type(size) is int and size >= 0 and isinstance(sha256, str) and _DIGEST.match(sha256):
        try:
            inside("/", path)
            return FileEntry(path=path, size=size, sha256=sha256)
        except Refusal as error:
            raise HostError(f"{agent.host.name}: {error}; nothing was brought") from None
    raise HostError(f"{agent.host.name}: {line!r} does not describe a file; nothing was brought")


def pull(
    agent: Agent, root: str, into: Path, *, only: Collection[str] | None = None, timeout_sec: float = 3600.0
) -> Moved:
    """Bring the files below `root` on the host (`only` these paths, if given) into `into`. What is there already stays.

    Raises ChecksumMismatch, HostError for unsafe names, and, after several tries in a row that brought nothing,
    the last HostUnreachable or CommandTimedOut; what came until then is kept and verified.
    """
    patience, state, already = _Patience(agent.host.name, timeout_sec), _Pull(into=into, wanted=[]), list[FileEntry]()
    listed = False
    while True:
        before = state.byte_count
        try:
            if not listed:
                entries = [entry for entry in manifest(agent, root) if only is None or entry.path in only]
                already = [entry for entry in entries if _is_here(into, entry)]
                state.wanted = [entry for entry in entries if entry not in already]
                listed = True
            state.finish_complete()
            if not state.wanted:
                break
            agent.raw(
                "send",
                {"root": root},
                payload=state.ranges(),
                on_bytes=state.take,
                timeout_sec=patience.left_sec(),
                idle_timeout_sec=_IDLE_SEC,
            )
            if state.wanted:  # a carrier that loses a stream may still report success
                raise HostUnreachable(f"{agent.host.name}: the stream ended inside {state.wanted[0].path}")
        except (HostUnreachable, CommandTimedOut) as error:
            patience.after(error, progressed=state.byte_count > before)
        finally:
            state.close()
    return Moved(came=tuple(state.came), already=tuple(entry.path for entry in already), byte_count=state.byte_count)


def push(agent: Agent, source: Path, root: str, *, timeout_sec: float = 3600.0) -> Moved:
    """Put every regular file below `source` into `root` on the host; raises as `pull` does."""
    entries = [
        FileEntry(path=str(path.relative_to(source)), size=size, sha256=sha256)
        for path in sorted(source.rglob("*"))
        if path.is_file() and not path.is_symlink()
        for size, sha256 in [digest_of(path)]
    ]
    patience, most, moved = _Patience(agent.host.name, timeout_sec), -1, 0
    already: set[str] | None = None
    again = set[str]()
    while True:
        progressed, stream = False, None
        try:
            here = agent.lines("missing", {"root": root}, payload=[vars(entry) for entry in entries])
            if len(here) != len(entries):
                raise HostUnreachable(f"{agent.host.name}: what it has of {root} was cut short")
            have = {line["path"]: line["have"] for line in here}
            progressed, most = sum(have.values()) > most, max(most, sum(have.values()))
            whole = {line["path"] for line in here if line["whole"]}
            wanted = [entry for entry in entries if entry.path not in whole]
            already = whole if already is None else already
            if not wanted:
                break
            stream = _Outgoing(source, wanted, have)
            answers = agent.lines(
                "receive",
                {"root": root},
                payload=[{**vars(entry), "offset": min(have[entry.path], entry.size)} for entry in wanted],
                bulk=stream,
                timeout_sec=patience.left_sec(),
            )
        except (HostUnreachable, CommandTimedOut) as error:
            patience.after(error, progressed=progressed)
            continue
        finally:
            moved += 0 if stream is None else stream.byte_count
        wrong = {answer["path"] for answer in answers if not answer["ok"]}
        if wrong & again:
            raise ChecksumMismatch(f"{min(wrong & again)}: arrived on {agent.host.name} with a wrong sha256, twice")
        again |= wrong
    paths = [entry.path for entry in entries]
    return Moved(
        came=tuple(path for path in paths if path not in already),
        already=tuple(path for path in paths if path in already),
        byte_count=moved,
    )


class _Outgoing:
    """The rest of each wanted file, one after the other, as one readable stream."""

    def __init__(self, source: Path, wanted: Sequence[FileEntry], have: dict[str, int]) -> None:
        self.byte_count = 0
        self._pieces = self._read(source, wanted, have)
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.byte_count += len(piece)
        return piece

    @staticmethod
    def _read(source: Path, wanted: Sequence[FileEntry], have: dict[str, int]) -> Iterator[bytes]:
        for entry in wanted:
            with (source / entry.path).open("rb") as file:
                file.seek(min(have[entry.path], entry.size))
                while piece := file.read(_PIECE):
                    yield piece


def _is_here(into: Path, entry: FileEntry) -> bool:
    path = inside(str(into), entry.path)
    return path.is_file() and digest_of(path) == (entry.size, entry.sha256)
