"""The near end of a pull: reads the stream of `remote.jobs.host_agent.files.send`, checks files, puts them into place."""

import fcntl
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

from remote.hosts.host import HostError, HostUnreachable
from remote.hosts.process import MOST_KEPT_BYTES
from remote.jobs.agent import Agent
from remote.jobs.host_agent.files import digest_of, is_movable, names_below, part_of, pieces
from remote.jobs.host_agent.util import Refusal, inside, sync_folder

_HAND_ON_BYTES = 8 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class ChecksumMismatch(HostError):
    """A file arrived complete with a wrong digest, twice; nothing was kept of it."""


@dataclass(kw_only=True)
class PartialFile:
    """A partial file, open and locked: two pulls into one folder must not write into each other's files.

    It holds `size` bytes with the digest `digest`.
    """

    file: FileIO
    digest: "hashlib._Hash"
    size: int
    handed_on: int = 0

    @classmethod
    def of(cls, path: Path) -> Self:
        """The partial file of `path`, with what an earlier pull left in it; made if there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        place, digest, size = Path(part_of(path)), hashlib.sha256(), 0
        file = os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), place.stat()):
                raise BlockingIOError  # its owner has just renamed it into place
            for piece in pieces(file):
                digest.update(piece)
                size += len(piece)
        except (BlockingIOError, FileNotFoundError):
            file.close()
            raise HostError(f"{path}: another process is receiving this file; let it finish") from None
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
        if self.size - self.handed_on >= _HAND_ON_BYTES and hasattr(os, "posix_fadvise"):
            # Makes the system write to the disk now, while more comes, and not at the end, while we wait.
            os.posix_fadvise(self.file.fileno(), self.handed_on, self.size - self.handed_on, os.POSIX_FADV_DONTNEED)
            self.handed_on = self.size

    def empty(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.digest, self.size, self.handed_on = hashlib.sha256(), 0, 0


class Incoming:
    """The state of one pull over as many streams as it takes. `byte_count` counts the bytes of files received."""

    def __init__(self, agent: Agent, into: Path, only: Collection[str] | None, without: Collection[str]) -> None:
        self.came, self.already, self.byte_count = list[str](), list[str](), 0
        self._agent, self._into, self._without = agent, into, frozenset(without)
        self._wanted = None if only is None else sorted({*only} - self._without)  # by name; None: whatever there is
        self._listed = False
        self._parts: dict[str, PartialFile] = {}
        self._wholes: dict[str, list[object]] = {}
        self._spoilt: set[str] = set()  # files that have arrived with a wrong digest once
        # Of the present stream: a line received in part, bytes of the present file and names of the files still to
        # come, whether the names were received, and whether the present file has begun.
        self._rest, self._left = bytearray(), 0
        self._coming: list[str] = []
        self._heard_names = self._body_began = False

    @property
    def is_complete(self) -> bool:
        """True once every file that the host named is here."""
        return self._listed and not self._wanted

    @property
    def progress(self) -> tuple[int, int]:
        """Grows with every byte and every file."""
        return self.byte_count, len(self.came) + len(self.already)

    @property
    def where(self) -> str:
        """How far the stream was, for a message."""
        if not self._heard_names:
            return "before its list of files"
        return f"inside {self._coming[0]}" if self._coming else "after its last file"

    def request(self) -> dict[str, object]:
        """Begin a stream: the files that are wanted, and what is here of them."""
        self._rest, self._left, self._coming = bytearray(), 0, []
        self._heard_names = self._body_began = False
        return {"only": self._wanted, "without": sorted(self._without), "here": self._here()}

    def take(self, piece: bytes) -> None:
        """Take a piece of the stream: lines and, between them, the bytes that a line has announced."""
        at = 0
        while at < len(piece):
            if self._left:
                stop = min(len(piece), at + self._left)
                self._parts[self._coming[0]].write(memoryview(piece)[at:stop])
                self.byte_count += stop - at
                self._left -= stop - at
                at = stop
                continue
            end = piece.find(b"\n", at)
            if self._heard_names and not self._coming:
                raise HostError(f"{self._agent.host.name}: sent more bytes than it announced")
            self._rest += piece[at:] if end < 0 else piece[at:end]
            if len(self._rest) > MOST_KEPT_BYTES:
                raise HostError(f"{self._agent.host.name}: sent a line without end")
            if end < 0:
                return
            line, self._rest, at = bytes(self._rest), bytearray(), end + 1
            self._hear(self._agent.parse(line))

    def close(self) -> None:
        """Close the partial files; their content stays for the next pull."""
        for part in self._parts.values():
            part.file.close()
        self._parts.clear()

    def _at(self, name: str) -> Path:
        return Path(inside(str(self._into), name))

    # --- one stream ---

    def _here(self) -> dict[str, dict[str, list[object]]]:
        """For every file that may be wanted: size and digest of the whole file and of the partial one here."""
        names = [*_names_here(self._into)] if self._wanted is None else self._wanted
        here: dict[str, dict[str, list[object]]] = {}
        for name in names:
            path, known = self._at(name), dict[str, list[object]]()
            if name not in self._wholes and is_movable(path):
                self._wholes[name] = [*digest_of(path)]
            if name in self._wholes:
                known["whole"] = self._wholes[name]
            if name not in self._parts and Path(part_of(path)).is_file():
                self._parts[name] = PartialFile.of(path)
            if name in self._parts:
                known["part"] = [self._parts[name].size, self._parts[name].digest.hexdigest()]
            if known:
                here[name] = known
        return here

    def _hear(self, line: dict[str, Any]) -> None:
        if line == {"busy": True}:
            return
        if not self._heard_names:
            self._hear_names(line.get("files"), line)
        elif self._body_began:
            self._hear_end_of_file(line)
        else:
            self._hear_file(line)

    def _hear_names(self, names: object, line: dict[str, Any]) -> None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._unexpected(line)
        try:
            for name in names:
                inside("/", name)
        except Refusal as error:
            raise HostError(f"{self._agent.host.name}: {error}; nothing was taken") from None
        was_asked_for = self._wanted is None or {*names} <= {*self._wanted}
        if len({*names}) < len(names) or self._without & {*names} or not was_asked_for:
            raise HostError(f"{self._agent.host.name}: sends other files than it was asked for; nothing was taken")
        if self._listed and (gone := {*(self._wanted or ())} - {*names}):
            raise HostError(f"{self._agent.host.name}: {min(gone)} was deleted during the transfer")
        # These files are wanted from now on, however many streams they take.
        self._wanted, self._coming, self._listed, self._heard_names = list(names), list(names), True, True

    def _hear_file(self, line: dict[str, Any]) -> None:
        name = self._coming[0]
        if line == {"same": True} and name in self._wholes:
            Path(part_of(self._at(name))).unlink(missing_ok=True)  # of a pull that broke long ago
            self._settle(name, self.already)
            return
        size, start = line.get("size"), line.get("from")
        part = self._parts.get(name)
        have = 0 if part is None else part.size
        if type(size) is not int or type(start) is not int or start not in (0, have) or size < start:
            raise self._unexpected(line)
        if part is None:
            part = self._parts[name] = PartialFile.of(self._at(name))
        if start == 0:
            part.empty()
        self._left, self._body_began = size - start, True

    def _hear_end_of_file(self, line: dict[str, Any]) -> None:
        """Rename the file into place if both digests are equal; otherwise drop it and ask once more."""
        name, part, sha256 = self._coming[0], self._parts[self._coming[0]], line.get("sha256")
        self._body_began = False
        path = self._at(name)
        if sha256 == part.digest.hexdigest():
            os.fsync(part.file.fileno())
            os.replace(part_of(path), path)
            sync_folder(path.parent)
            self._settle(name, self.came)
            return
        if line != {"changed": True} and not (isinstance(sha256, str) and _DIGEST.match(sha256)):
            raise self._unexpected(line)
        os.unlink(part_of(path))
        self._parts.pop(name).file.close()
        what = "it changed while it was read" if sha256 is None else "its bytes do not match its sha256"
        if name in self._spoilt:
            raise ChecksumMismatch(f"{name}: {what}, twice; nothing was kept")
        self._spoilt.add(name)
        raise HostUnreachable(f"{name}: {what}; asking again")

    def _settle(self, name: str, where: list[str]) -> None:
        where.append(name)
        self._coming.pop(0)
        assert self._wanted is not None  # noqa: S101 - for the type checker: the names were heard
        self._wanted.remove(name)
        if part := self._parts.pop(name, None):
            part.file.close()

    def _unexpected(self, line: dict[str, Any]) -> HostError:
        return HostError(f"{self._agent.host.name}: unexpected answer {self.where}: {line!r}; nothing more was taken")


def _names_here(into: Path) -> Iterator[str]:
    """The files below `into` and those that an earlier pull left there in part."""
    yield from names_below(into)
    for part in into.rglob(".*.part"):
        whole = part.with_name(part.name[1:].removesuffix(".part"))
        if whole.name and part_of(whole) == str(part) and not is_movable(whole):
            yield str(whole.relative_to(into))
