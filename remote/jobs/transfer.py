"""Transfer of folders between the operator's machine and any host, verified and resumable.

Both sides compute a file's sha256 during the transfer. The bytes go to a partial file, which is renamed if both digests
are equal. A broken stream only costs the bytes in flight: the next try requests the rest, also of a file. An existing
file, or a part of one, is kept only if its digest is the host's. Names that would leave the folder are rejected.

Not covered: links and special files (skipped), permissions. A file that is rewritten during the transfer is requested
once more; a file that only grows is transferred at the length it had when it was opened.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.agent.shared.files import hash_file
from remote.hosts.base import CommandTimedOut, HostError, HostUnreachable
from remote.jobs.agent import Agent
from remote.jobs.download import ChecksumMismatch, Download

__all__ = ["ChecksumMismatch", "FileEntry", "TransferResult", "pull", "push"]

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
            if list(present_bytes) != [entry.path for entry in entries]:
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
