"""Receiver of a pull: parses the stream of `remote.agent.jobs.files.send`, verifies the files and stores them."""

import fcntl
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

from remote.agent.shared.disk import join_inside, sync_folder
from remote.agent.shared.files import hash_file, is_movable, list_names, partial_path, read_chunks
from remote.agent.shared.wire import RequestRefused
from remote.hosts.base import HostError, HostUnreachable
from remote.hosts.process import MAX_OUTPUT_BYTES
from remote.jobs.agent import Agent

_FLUSH_BYTES = 8 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


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
