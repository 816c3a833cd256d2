"""Transfer of folders between the operator's machine and any host, verified and resumable.

The sender lists its files with their sha256. The bytes go to a partial file, which is renamed if it has that digest. A
broken stream only costs the bytes in flight: the next try requests the rest, also of a file. An existing file is kept
only if its digest is the sender's. Names that would leave the folder are rejected.

Not covered: links and special files (skipped), permissions. A file that is rewritten during the transfer is requested
once more; a file that only grows is transferred at the length it had when it was opened.
"""

import fcntl
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from remote.agent.shared.files import (
    hash_file,
    install_part,
    is_movable,
    join_inside,
    partial_path,
)
from remote.agent.shared.wire import RequestRefused
from remote.hosts.host_protocol import CommandTimedOut, HostError, HostUnreachable
from remote.jobs.job import Agent, ByteStream

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

_IDLE_SEC = 30.0
_CHUNK_BYTES = 1 << 20
_MAX_FRUITLESS_TRIES = 4  # consecutive tries without a byte of progress


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a folder: relative path, size in bytes and sha256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TransferResult:
    """Paths that were transferred, paths that existed already, and the bytes sent over the connection."""

    transferred: tuple[str, ...] = ()
    already_present: tuple[str, ...] = ()
    byte_count: int = 0


class _RetryPolicy:
    """Retries of a broken transfer: until its deadline, while tries make progress."""

    def __init__(self, host: str, timeout_sec: float) -> None:
        self._host, self._timeout_sec = host, timeout_sec
        self._deadline = time.monotonic() + timeout_sec
        self._fruitless = 0

    def left_sec(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CommandTimedOut(f"{self._host}: transfer timed out after {self._timeout_sec:g} s")
        return left

    def wait_after(self, error: HostError, *, made_progress: bool) -> None:
        """Sleep until the next try; raise `error` after the last one."""
        self._fruitless = 0 if made_progress else self._fruitless + 1
        if self._fruitless >= _MAX_FRUITLESS_TRIES or time.monotonic() >= self._deadline:
            raise error
        time.sleep(min(2.0**self._fruitless, 10.0) / 10)


def pull(
    agent: Agent,
    root: str,
    into: Path,
    *,
    only: Collection[str] | None = None,
    exclude: Collection[str] = (),
    timeout_sec: float = 3600.0,
) -> TransferResult:
    """Copy the files below `root` on the host into `into`; `only` these, if given, and not those in `exclude`.

    Files of `into` that the host lacks stay. Raises ChecksumMismatch, HostError for unsafe names and, after several
    tries without progress, the last HostUnreachable or CommandTimedOut; files received until then stay.
    """
    retry_policy, download = _RetryPolicy(agent.host.name, timeout_sec), Download(agent, root, into)
    wanted = None if only is None else sorted({*only} - {*exclude})
    try:
        while wanted is None or wanted:
            before = download.progress
            try:
                entries = _list_files(agent, root, wanted, exclude, retry_policy.left_sec())
                names = [entry.path for entry in entries]
                if download.is_listed and (gone := {*(wanted or ())} - {*names}):
                    raise HostError(f"{agent.host.name}: {min(gone)} was deleted during the transfer")
                wanted = names
                download.receive(entries, retry_policy)
            except (HostUnreachable, CommandTimedOut) as error:
                retry_policy.wait_after(error, made_progress=download.progress > before)
            finally:
                done = download.done
                wanted = None if wanted is None else [name for name in wanted if name not in done]
    finally:
        download.close()
    return TransferResult(
        transferred=tuple(download.transferred),
        already_present=tuple(download.already_present),
        byte_count=download.byte_count,
    )


def _list_files(
    agent: Agent, root: str, wanted: list[str] | None, exclude: Collection[str], timeout_sec: float
) -> list[FileEntry]:
    """List the host's files, checked: a host may send anything. Raises HostError and like `Agent`."""
    payload = {"only": wanted, "without": sorted(exclude)}
    answer = agent.call_line("listing", {"root": root}, payload=payload, timeout_sec=timeout_sec)
    try:
        entries = [FileEntry(path=path, size=size, sha256=sha256) for path, size, sha256 in answer["files"]]
        if not all(type(entry.size) is int and entry.size >= 0 and _SHA256.match(entry.sha256) for entry in entries):
            raise ValueError("a size or digest is invalid")
        names = {entry.path: join_inside("/", entry.path) for entry in entries}
    except (KeyError, ValueError, TypeError, AttributeError, RequestRefused) as error:
        raise HostError(
            f"{agent.host.name}: its list of files is not valid: {error}", remedy="nothing was received"
        ) from error
    is_wanted = wanted is None or names.keys() <= {*wanted}
    if len(names) < len(entries) or names.keys() & {*exclude} or not is_wanted:
        raise HostError(f"{agent.host.name}: lists other files than requested", remedy="nothing was received")
    return entries


def push(
    agent: Agent,
    source: Path | Mapping[str, Path],
    root: str,
    *,
    timeout_sec: float = 3600.0,
) -> TransferResult:
    """Copy every regular file below `source`, or files by name, into `root` on the host. Raises like `pull`."""
    if isinstance(source, Path):
        below = (path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
        files = dict(sorted((str(path.relative_to(source)), path) for path in below))
    else:
        files = dict(sorted(source.items()))
    entries = [
        FileEntry(path=name, size=size, sha256=sha256)
        for name, path in files.items()
        for size, sha256 in [hash_file(path)]
    ]
    retry_policy, max_present, byte_count = _RetryPolicy(agent.host.name, timeout_sec), -1, 0
    already: set[str] | None = None
    mismatched = set[str]()
    while True:
        made_progress, stream = False, None
        try:
            manifest = [vars(entry) for entry in entries]
            states = agent.call_lines("missing", {"root": root}, payload=manifest, timeout_sec=retry_policy.left_sec())
            present_bytes = {agent.field(line, "path", str): agent.field(line, "have", int) for line in states}
            names = [entry.path for entry in entries]
            if list(present_bytes) != names or min(present_bytes.values(), default=0) < 0:
                raise HostUnreachable(f"{agent.host.name}: the list of its files in {root} is truncated")
            present = sum(present_bytes.values())
            made_progress, max_present = present > max_present, max(max_present, present)
            complete = {line["path"] for line in states if line.get("whole") is True}
            wanted = [entry for entry in entries if entry.path not in complete]
            already = complete if already is None else already
            if not wanted:
                break
            stream = ByteStream(_missing_bytes(files, wanted, present_bytes))
            answers = agent.call_lines(
                "receive",
                {"root": root},
                payload=[{**vars(entry), "offset": min(present_bytes[entry.path], entry.size)} for entry in wanted],
                bulk=stream,
                timeout_sec=retry_policy.left_sec(),
            )
        except (HostUnreachable, CommandTimedOut) as error:
            retry_policy.wait_after(error, made_progress=made_progress)
            continue
        finally:
            byte_count += 0 if stream is None else stream.byte_count
        wrong = {entry.path for entry in wanted} & {
            agent.field(answer, "path", str) for answer in answers if answer.get("ok") is not True
        }
        if wrong & mismatched:
            raise ChecksumMismatch(
                f"{min(wrong & mismatched)}: arrived on {agent.host.name} with a wrong sha256, twice"
            )
        mismatched |= wrong
    paths = [entry.path for entry in entries]
    return TransferResult(
        transferred=tuple(path for path in paths if path not in already),
        already_present=tuple(path for path in paths if path in already),
        byte_count=byte_count,
    )


def _missing_bytes(
    files: Mapping[str, Path], wanted: Sequence[FileEntry], present_bytes: dict[str, int]
) -> Iterator[bytes]:
    """Yield the missing bytes of all wanted files."""
    for entry in wanted:
        with files[entry.path].open("rb") as file:
            file.seek(min(present_bytes[entry.path], entry.size))
            while piece := file.read(_CHUNK_BYTES):
                yield piece


# --- a pull -----------------------------------------------------------------------------------------------------------


class ChecksumMismatch(HostError):
    """File that arrived twice with a wrong digest; nothing of it was kept."""


def open_part(path: Path) -> FileIO:
    """Open or create the partial file of `path` at its end, and lock it against other pulls into the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_path(path)
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(part)):  # noqa: PTH116
            raise BlockingIOError  # another process has just renamed it
    except (BlockingIOError, FileNotFoundError) as error:
        file.close()
        problem = f"{path}: another process is receiving this file"
        raise HostError(problem, remedy="wait until it has finished") from error
    file.seek(0, os.SEEK_END)
    return file


class Download:
    """State of one pull over all its streams. `byte_count` counts the received bytes of files."""

    def __init__(self, agent: Agent, root: str, into: Path) -> None:
        self.transferred, self.already_present, self.byte_count = list[str](), list[str](), 0
        self.is_listed = False
        self._agent, self._root, self._into = agent, root, into
        self._mismatched = set[str]()  # files that arrived whole with a wrong digest once
        # The current stream: the files to come, each with the offset from which it was requested, and the first one.
        self._remaining: list[tuple[FileEntry, int]] = []
        self._part: FileIO | None = None

    @property
    def done(self) -> set[str]:
        return {*self.transferred, *self.already_present}

    @property
    def progress(self) -> tuple[int, int]:
        """Counters that grow with every byte and every file."""
        return self.byte_count, len(self.done)

    def receive(self, entries: Sequence[FileEntry], retry_policy: _RetryPolicy) -> None:
        """Receive the files that are not here in one stream. Raises HostUnreachable if it ends early."""
        self.close()
        self.is_listed, self._remaining = True, []
        for entry in entries:
            path = self._path(entry)
            if is_movable(path) and hash_file(path) == (entry.size, entry.sha256):
                Path(partial_path(path)).unlink(missing_ok=True)  # left by an earlier broken pull
                self.already_present.append(entry.path)
                continue
            part = Path(partial_path(path))
            size = part.stat().st_size if part.is_file() else 0
            self._remaining.append((entry, size if size <= entry.size else 0))
        if not self._remaining:
            return
        self._agent.call_bytes(
            "send",
            {"root": self._root},
            payload=[{"path": entry.path, "size": entry.size, "offset": offset} for entry, offset in self._remaining],
            on_bytes=self._feed,
            timeout_sec=retry_policy.left_sec(),
            idle_timeout_sec=_IDLE_SEC,
        )
        self._feed(b"")  # files of which no byte was missing
        if self._remaining:  # a transport that loses a stream may report success
            raise HostUnreachable(f"{self._agent.host.name}: the stream ended inside {self._remaining[0][0].path}")

    def close(self) -> None:
        """Close the partial file, which stays for the next pull."""
        if self._part is not None:
            self._part.close()
        self._part = None

    def _path(self, entry: FileEntry) -> Path:
        return Path(join_inside(str(self._into), entry.path))

    def _feed(self, piece: bytes) -> None:
        """Write a chunk of the stream, which has no bytes between the files."""
        left = memoryview(piece)
        while self._remaining:
            entry, offset = self._remaining[0]
            if self._part is None:
                self._part = open_part(self._path(entry))
                if offset == 0:
                    self._part.seek(0)
                    self._part.truncate()
                elif self._part.tell() != offset:
                    raise HostUnreachable(f"{entry.path}: its partial file changed")
            while left and self._part.tell() < entry.size:
                written = self._part.write(left[: entry.size - self._part.tell()])
                self.byte_count, left = self.byte_count + written, left[written:]
            if self._part.tell() < entry.size:
                return
            self._end_file(entry, self._part, is_resumed=offset > 0)
        if left:
            raise HostError(f"{self._agent.host.name}: sent more bytes than it announced")

    def _end_file(self, entry: FileEntry, part: FileIO, *, is_resumed: bool) -> None:
        """Rename the file into place if it has the listed digest, else delete it, to be requested once more."""
        path, name = self._path(entry), entry.path
        os.fsync(part.fileno())
        if install_part(partial_path(path), path, (entry.size, entry.sha256)):
            self.transferred.append(name)
        elif name in self._mismatched:
            raise ChecksumMismatch(f"{name}: its bytes do not match its sha256, twice", remedy="nothing was kept")
        elif not is_resumed:  # a part may be one of an older version
            self._mismatched.add(name)
        self._remaining.pop(0)
        self.close()
