"""Transfer of folders between the operator's machine and any host, verified and resumable.

Both sides compute a file's sha256 during the transfer. The bytes go to a partial file, which is renamed if both digests
are equal. A broken stream only costs the bytes in flight: the next try requests the rest, also of a file. An existing
file, or a part of one, is kept only if its digest is the host's. Names that would leave the folder are rejected.

Not covered: links and special files (skipped), permissions. A file that is rewritten during the transfer is requested
once more; a file that only grows is transferred at the length it had when it was opened.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

from remote.agent.shared.files import (
    hash_file,
    is_movable,
    join_inside,
    list_names,
    partial_path,
    read_chunks,
    sync_folder,
)
from remote.agent.shared.wire import RequestRefused
from remote.hosts.base import CommandTimedOut, HostError, HostUnreachable
from remote.hosts.process import MAX_OUTPUT_BYTES
from remote.jobs.job import Agent

_FLUSH_BYTES = 8 << 20
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

    Files of `into` that the host lacks stay. An unbroken transfer is one call of the host. Raises ChecksumMismatch,
    HostError for unsafe names and, after several tries without progress, the last HostUnreachable or CommandTimedOut;
    files received until then are verified and stay.
    """
    retry_policy, download = _RetryPolicy(agent.host.name, timeout_sec), Download(agent, into, only, exclude)
    try:
        while not download.is_complete:
            before = download.progress
            try:
                agent.call_bytes(
                    "send",
                    {"root": root},
                    payload=download.request(),
                    on_bytes=download.feed,
                    timeout_sec=retry_policy.left_sec(),
                    idle_timeout_sec=_IDLE_SEC,
                )
                if not download.is_complete:  # a transport that loses a stream may report success
                    raise HostUnreachable(f"{agent.host.name}: the stream ended {download.position}")
            except (HostUnreachable, CommandTimedOut) as error:
                retry_policy.wait_after(error, made_progress=download.progress > before)
    finally:
        download.close()
    return TransferResult(
        transferred=tuple(download.transferred),
        already_present=tuple(download.already_present),
        byte_count=download.byte_count,
    )


def push(
    agent: Agent,
    source: Path | Mapping[str, Path],
    root: str,
    *,
    timeout_sec: float = 3600.0,
    on_progress: Callable[[int, int], None] = lambda _sent, _total: None,
) -> TransferResult:
    """Copy every regular file below `source`, or files by name, into `root` on the host. Raises like `pull`.

    `on_progress` receives the bytes sent of a stream, and its total.
    """
    files = dict(sorted(source.items())) if isinstance(source, Mapping) else _files_below(source)
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
            stream = _UploadStream(files, wanted, present_bytes, on_progress)
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


def _files_below(folder: Path) -> dict[str, Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path for path in files}


class _UploadStream:
    """Missing bytes of all wanted files, concatenated as one ByteReader."""

    def __init__(
        self,
        files: Mapping[str, Path],
        wanted: Sequence[FileEntry],
        present_bytes: dict[str, int],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.byte_count, self._on_progress = 0, on_progress
        self._total = sum(max(0, entry.size - present_bytes[entry.path]) for entry in wanted)
        self._chunks = self._read(files, wanted, present_bytes)
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            self._rest = next(self._chunks, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        self.byte_count += len(piece)
        self._on_progress(self.byte_count, self._total)
        return piece

    @staticmethod
    def _read(files: Mapping[str, Path], wanted: Sequence[FileEntry], present_bytes: dict[str, int]) -> Iterator[bytes]:
        for entry in wanted:
            with files[entry.path].open("rb") as file:
                file.seek(min(present_bytes[entry.path], entry.size))
                while piece := file.read(_CHUNK_BYTES):
                    yield piece


# --- a pull -----------------------------------------------------------------------------------------------------------


class ChecksumMismatch(HostError):
    """File that arrived twice with a wrong digest; nothing of it was kept."""


@dataclass(kw_only=True)
class PartialFile:
    """A partial file, open and locked against other pulls into the folder.

    It has `size` bytes with the digest `digest`.
    """

    file: FileIO
    digest: "hashlib._Hash"
    size: int
    flushed_size: int = 0

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the partial file of `path`, with the content that an earlier pull left."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part, digest, size = Path(partial_path(path)), hashlib.sha256(), 0
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), part.stat()):
                raise BlockingIOError  # another process has just renamed it
            for piece in read_chunks(file):
                digest.update(piece)
                size += len(piece)
        except (BlockingIOError, FileNotFoundError) as error:
            file.close()
            raise HostError(
                f"{path}: another process is receiving this file", remedy="wait until it has finished"
            ) from error
        except BaseException:
            file.close()
            raise
        return cls(file=file, digest=digest, size=size)

    def write(self, piece: memoryview) -> None:
        left = piece
        while left:
            left = left[self.file.write(left) :]
        self.digest.update(piece)
        self.size += len(piece)
        if self.size - self.flushed_size >= _FLUSH_BYTES and hasattr(os, "posix_fadvise"):
            # Starts writing to the disk during the transfer, instead of at the final fsync.
            os.posix_fadvise(
                self.file.fileno(), self.flushed_size, self.size - self.flushed_size, os.POSIX_FADV_DONTNEED
            )
            self.flushed_size = self.size

    def clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.digest, self.size, self.flushed_size = hashlib.sha256(), 0, 0


class Download:
    """State of one pull over all its streams. `byte_count` counts the received bytes of files."""

    def __init__(self, agent: Agent, into: Path, only: Collection[str] | None, exclude: Collection[str]) -> None:
        self.transferred, self.already_present, self.byte_count = list[str](), list[str](), 0
        self._agent, self._into, self._exclude = agent, into, frozenset(exclude)
        self._wanted = None if only is None else sorted({*only} - self._exclude)  # names; None: all files
        self._is_listed = False
        self._partial_files: dict[str, PartialFile] = {}
        self._complete_files: dict[str, list[object]] = {}
        self._mismatched: set[str] = set()  # files that arrived with a wrong digest once
        # State of the current stream: a partial line, bytes left of the current file, names of the files to come, and
        # two flags: the names were received, the current file's header was received.
        self._partial_line, self._body_left = bytearray(), 0
        self._remaining: list[str] = []
        self._has_names = self._is_in_body = False

    @property
    def is_complete(self) -> bool:
        """True once every file that the host listed is complete."""
        return self._is_listed and not self._wanted

    @property
    def progress(self) -> tuple[int, int]:
        """Counters that grow with every byte and every file."""
        return self.byte_count, len(self.transferred) + len(self.already_present)

    @property
    def position(self) -> str:
        """Position in the stream, for a message."""
        if not self._has_names:
            return "before its list of files"
        return f"inside {self._remaining[0]}" if self._remaining else "after its last file"

    def request(self) -> dict[str, object]:
        """Begin a stream: return the request with the wanted files and the local state of each."""
        self._partial_line, self._body_left, self._remaining = bytearray(), 0, []
        self._has_names = self._is_in_body = False
        return {"only": self._wanted, "without": sorted(self._exclude), "here": self._local_state()}

    def feed(self, piece: bytes) -> None:
        """Process a chunk of the stream: lines, and the bytes that a line announces."""
        offset = 0
        while offset < len(piece):
            if self._body_left:
                stop = min(len(piece), offset + self._body_left)
                self._partial_files[self._remaining[0]].write(memoryview(piece)[offset:stop])
                self.byte_count += stop - offset
                self._body_left -= stop - offset
                offset = stop
                continue
            end = piece.find(b"\n", offset)
            if self._has_names and not self._remaining:
                raise HostError(f"{self._agent.host.name}: sent more bytes than it announced")
            self._partial_line += piece[offset:] if end < 0 else piece[offset:end]
            if len(self._partial_line) > MAX_OUTPUT_BYTES:
                raise HostError(f"{self._agent.host.name}: sent too long a line")
            if end < 0:
                return
            line, self._partial_line, offset = bytes(self._partial_line), bytearray(), end + 1
            self._on_line(self._agent.parse(line))

    def close(self) -> None:
        """Close the partial files, which stay for the next pull."""
        for part in self._partial_files.values():
            part.file.close()
        self._partial_files.clear()

    def _path(self, name: str) -> Path:
        return Path(join_inside(str(self._into), name))

    # --- one stream ---

    def _local_state(self) -> dict[str, dict[str, list[object]]]:
        """Return size and digest of the complete and the partial local file, for every file that may be wanted."""
        names = [*_local_names(self._into)] if self._wanted is None else self._wanted
        local: dict[str, dict[str, list[object]]] = {}
        for name in names:
            path, state = self._path(name), dict[str, list[object]]()
            if name not in self._complete_files and is_movable(path):
                self._complete_files[name] = [*hash_file(path)]
            if name in self._complete_files:
                state["whole"] = self._complete_files[name]
            if name not in self._partial_files and Path(partial_path(path)).is_file():
                self._partial_files[name] = PartialFile.open(path)
            if name in self._partial_files:
                state["part"] = [self._partial_files[name].size, self._partial_files[name].digest.hexdigest()]
            if state:
                local[name] = state
        return local

    def _on_line(self, line: dict[str, Any]) -> None:
        if line == {"busy": True}:
            return
        if not self._has_names:
            self._on_names(line.get("files"), line)
        elif self._is_in_body:
            self._on_file_end(line)
        else:
            self._on_file(line)

    def _on_names(self, names: object, line: dict[str, Any]) -> None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._unexpected_answer(line)
        try:
            for name in names:
                join_inside("/", name)
        except RequestRefused as error:
            raise HostError(f"{self._agent.host.name}: {error}", remedy="nothing was received") from error
        is_wanted = self._wanted is None or {*names} <= {*self._wanted}
        if len({*names}) < len(names) or self._exclude & {*names} or not is_wanted:
            raise HostError(f"{self._agent.host.name}: lists other files than requested", remedy="nothing was received")
        if self._is_listed and (gone := {*(self._wanted or ())} - {*names}):
            raise HostError(f"{self._agent.host.name}: {min(gone)} was deleted during the transfer")
        # Every later stream has to deliver these files.
        self._wanted, self._remaining, self._is_listed, self._has_names = list(names), list(names), True, True

    def _on_file(self, line: dict[str, Any]) -> None:
        name = self._remaining[0]
        if line == {"same": True} and name in self._complete_files:
            Path(partial_path(self._path(name))).unlink(missing_ok=True)  # left by an earlier broken pull
            self._finish_file(name, self.already_present)
            return
        size, start = line.get("size"), line.get("from")
        part = self._partial_files.get(name)
        local_size = 0 if part is None else part.size
        if type(size) is not int or type(start) is not int or start not in (0, local_size) or size < start:
            raise self._unexpected_answer(line)
        if part is None:
            part = self._partial_files[name] = PartialFile.open(self._path(name))
        if start == 0:
            part.clear()
        self._body_left, self._is_in_body = size - start, True

    def _on_file_end(self, line: dict[str, Any]) -> None:
        """Rename the file into place if both digests are equal, else delete it and request it once more."""
        name, part, sha256 = self._remaining[0], self._partial_files[self._remaining[0]], line.get("sha256")
        self._is_in_body = False
        path = self._path(name)
        if sha256 == part.digest.hexdigest():
            os.fsync(part.file.fileno())
            os.replace(partial_path(path), path)
            sync_folder(path.parent)
            self._finish_file(name, self.transferred)
            return
        if line != {"changed": True} and not (isinstance(sha256, str) and _SHA256.match(sha256)):
            raise self._unexpected_answer(line)
        os.unlink(partial_path(path))
        self._partial_files.pop(name).file.close()
        problem = "it changed during the transfer" if sha256 is None else "its bytes do not match its sha256"
        if name in self._mismatched:
            raise ChecksumMismatch(f"{name}: {problem}, twice", remedy="nothing was kept")
        self._mismatched.add(name)
        raise HostUnreachable(f"{name}: {problem}", remedy="requesting it again")

    def _finish_file(self, name: str, names: list[str]) -> None:
        names.append(name)
        self._remaining.pop(0)
        assert self._wanted is not None  # noqa: S101 - for the type checker: the names were received
        self._wanted.remove(name)
        if part := self._partial_files.pop(name, None):
            part.file.close()

    def _unexpected_answer(self, line: dict[str, Any]) -> HostError:
        return HostError(
            f"{self._agent.host.name}: unexpected answer {self.position}: {line!r}", remedy="the transfer stopped"
        )


def _local_names(into: Path) -> Iterator[str]:
    """List the files below `into`, and those of which an earlier pull left a part."""
    yield from list_names(into)
    for part in into.rglob(".*.part"):
        whole = part.with_name(part.name[1:].removesuffix(".part"))
        if whole.name and partial_path(whole) == str(part) and not is_movable(whole):
            yield str(whole.relative_to(into))
