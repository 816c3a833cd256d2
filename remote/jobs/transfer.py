"""Moves folders between the operator's machine and any host, verified and resumable.

Both sides compute a file's sha256 while its bytes pass. The bytes are kept as a partial file, which is renamed into
place when both digests are equal. A broken stream costs the bytes still in flight: the next try asks for the rest, file
by file and inside a file. A file that is here already, or the beginning of one, stays only if its digest is the host's.
Names that would leave the folder are refused.

Not covered: links and special files (left out), permissions. A file that is rewritten while it is read is asked for
once more; one that only grows comes at the length it had when it was opened.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.hosts.host import CommandTimedOut, HostError, HostUnreachable
from remote.jobs.agent import Agent
from remote.jobs.download import ChecksumMismatch, Incoming
from remote.jobs.host_agent.files import digest_of

__all__ = ["ChecksumMismatch", "FileEntry", "Moved", "pull", "push"]

_IDLE_SEC = 30.0
_PIECE = 1 << 20
_FRUITLESS_TRIES = 4  # in a row, without one byte of progress


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a folder: its path below it, size in bytes and sha256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The paths that moved, those that were there already, and the bytes sent over the connection."""

    came: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    byte_count: int = 0


class _RetryPolicy:
    """How long a broken transfer is tried again: until its deadline, and while tries make progress."""

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
        """Return when another try is due; raises `error` if there is none."""
        self._fruitless = 0 if progressed else self._fruitless + 1
        if self._fruitless >= _FRUITLESS_TRIES or time.monotonic() >= self._deadline:
            raise error
        time.sleep(min(2.0**self._fruitless, 10.0) / 10)


def pull(
    agent: Agent,
    root: str,
    into: Path,
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    timeout_sec: float = 3600.0,
) -> Moved:
    """Copy the files below `root` on the host (`only` these, if given, and `without` those) into `into`.

    Files of `into` that are not on the host stay. Unless it breaks, one call of the host is enough. Raises
    ChecksumMismatch, HostError for unsafe names and, after several tries without progress, the last HostUnreachable or
    CommandTimedOut; the files that came are kept and verified.
    """
    patience, state = _RetryPolicy(agent.host.name, timeout_sec), Incoming(agent, into, only, without)
    try:
        while not state.is_complete:
            before = state.progress
            try:
                agent.raw(
                    "send",
                    {"root": root},
                    payload=state.request(),
                    on_bytes=state.take,
                    timeout_sec=patience.left_sec(),
                    idle_timeout_sec=_IDLE_SEC,
                )
                if not state.is_complete:  # a transport that loses a stream may still report success
                    raise HostUnreachable(f"{agent.host.name}: the stream ended {state.where}")
            except (HostUnreachable, CommandTimedOut) as error:
                patience.after(error, progressed=state.progress > before)
    finally:
        state.close()
    return Moved(came=tuple(state.came), already=tuple(state.already), byte_count=state.byte_count)


def push(agent: Agent, source: Path | Mapping[str, Path], root: str, *, timeout_sec: float = 3600.0) -> Moved:
    """Copy every regular file below `source`, or these files by their names, into `root` on the host.

    Raises as `pull` does.
    """
    files = dict(sorted(source.items())) if isinstance(source, Mapping) else _below(source)
    entries = [
        FileEntry(path=name, size=size, sha256=sha256)
        for name, path in files.items()
        for size, sha256 in [digest_of(path)]
    ]
    patience, most, moved = _RetryPolicy(agent.host.name, timeout_sec), -1, 0
    already: set[str] | None = None
    again = set[str]()
    while True:
        progressed, stream = False, None
        try:
            listed = [vars(entry) for entry in entries]
            here = agent.lines("missing", {"root": root}, payload=listed, timeout_sec=patience.left_sec())
            if len(here) != len(entries):
                raise HostUnreachable(f"{agent.host.name}: the list of its files in {root} was cut short")
            have = {line["path"]: line["have"] for line in here}
            progressed, most = sum(have.values()) > most, max(most, sum(have.values()))
            whole = {line["path"] for line in here if line["whole"]}
            wanted = [entry for entry in entries if entry.path not in whole]
            already = whole if already is None else already
            if not wanted:
                break
            stream = _Outgoing(files, wanted, have)
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


def _below(folder: Path) -> dict[str, Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path for path in files}


class _Outgoing:
    """The rest of each wanted file, one after the other, as one Readable."""

    def __init__(self, files: Mapping[str, Path], wanted: Sequence[FileEntry], have: dict[str, int]) -> None:
        self.byte_count = 0
        self._pieces = self._read(files, wanted, have)
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.byte_count += len(piece)
        return piece

    @staticmethod
    def _read(files: Mapping[str, Path], wanted: Sequence[FileEntry], have: dict[str, int]) -> Iterator[bytes]:
        for entry in wanted:
            with files[entry.path].open("rb") as file:
                file.seek(min(have[entry.path], entry.size))
                while piece := file.read(_PIECE):
                    yield piece
