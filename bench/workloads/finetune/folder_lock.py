"""Lock of a checkpoints' folder: one attempt at a time writes there.

A flock decides on one machine only: between machines, a network file system may ignore it or keep it for a machine that
is gone. So the holder names its machine in the file and rewrites it every `BEAT_SEC`. An attempt on another machine
takes the lock if the file stays the same for `TAKEOVER_SEC`. An orderly end leaves it empty: it is taken at once.

Not covered: a holder that is suspended for longer than `TAKEOVER_SEC` and then continues.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.data.inputs import InputError, InputRejected
from bench.harness.termination import WorkerGone
from bench.records import schema
from bench.records.atomic_files import DISK_ERRNOS, read_regular
from bench.records.status import ReasonCode, escape_controls

LOCK_FILE = "attempt.lock"
BEAT_SEC, POLL_SEC, TAKEOVER_SEC = 5.0, 1.0, 30.0
MAX_BYTES = 4096
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The attempt that holds the lock. `machine` identifies a running kernel, `beat` counts its writes."""

    machine: str
    host: str
    pid: int
    attempt: int
    beat: int = 0


class FolderLock:
    """Lock of the folder, held from the creation until `close` or the end of the process."""

    def __init__(self, folder: Path, attempt: int, log: Callable[[str], None]) -> None:
        """Acquire the lock.

        Raises InputRejected if a living attempt of this machine holds it, WorkerGone for one of another machine,
        OSError for a fault of the storage, and InputError if the file is unusable.
        """
        self._path, self._folder = folder / LOCK_FILE, folder
        self._holder = Holder(machine=_machine(), host=platform.node(), pid=os.getpid(), attempt=attempt)
        self._closed = threading.Event()
        try:
            self._handle = self._acquire(log)
        except OSError as error:
            if error.errno in DISK_ERRNOS:
                raise
            raise InputError(
                f"{self._path}: cannot be used: {error.strerror}", remedy="remove it, or use another folder"
            ) from error
        self._thread = threading.Thread(target=self._beat, daemon=True, name="folder lock")
        self._thread.start()

    def close(self) -> None:
        """Empty the file, so that an attempt on another machine need not wait, and release the lock."""
        self._closed.set()
        self._thread.join(BEAT_SEC)
        with contextlib.suppress(OSError):
            if self._read() in (None, self._holder):  # not of another attempt, which took it
                os.ftruncate(self._handle, 0)
        os.close(self._handle)

    def _acquire(self, log: Callable[[str], None]) -> int:
        """Return the descriptor of the locked file. Raises OSError, InputRejected and WorkerGone."""
        handle, is_locked = self._open()
        holder = self._read()
        is_decided = holder is None or holder.machine == self._holder.machine
        if is_decided and is_locked is False:
            os.close(handle)
            raise self._in_use(holder)
        if holder is not None and not (is_decided and is_locked):
            log(f"{self._folder}: {_label(holder)} may still write to it: waiting up to {TAKEOVER_SEC:g} s")
            self._wait_for_end(holder)
            if is_locked is False:  # kept for a machine that is gone
                os.close(handle)
                self._path.unlink(missing_ok=True)
                handle, is_locked = self._open()
            self._write(handle)
            time.sleep(2 * POLL_SEC)
            if (now := self._read()) != self._holder or is_locked is False:  # another attempt waited, too
                os.close(handle)
                raise self._in_use(now)
            return handle
        self._write(handle)
        return handle

    def _open(self) -> tuple[int, bool | None]:
        """Open and lock the file; return whether it is locked, None on a file system without locks."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return handle, False
        except OSError:
            return handle, None
        return handle, True

    def _read(self) -> Holder | None:
        """Read the file again, as other machines wrote it; None if it is empty."""
        content = read_regular(self._path, max_bytes=MAX_BYTES, follow=False)
        if not content.strip():
            return None
        try:
            return schema.from_json(Holder, schema.parse(content), LOCK_FILE)
        except ValueError:  # being written, or of another version
            return Holder(machine="", host="another machine", pid=0, attempt=0, beat=hash(content))

    def _wait_for_end(self, holder: Holder) -> None:
        """Return once the holder has released the lock or has not written for TAKEOVER_SEC. Raises WorkerGone."""
        deadline = time.monotonic() + TAKEOVER_SEC
        while time.monotonic() < deadline:
            time.sleep(POLL_SEC)
            now = self._read()
            if now is None:
                return
            if now != holder:
                raise self._in_use(now)

    def _in_use(self, holder: Holder | None) -> Exception:
        text = f"{self._folder}: in use by {'another attempt' if holder is None else _label(holder)}"
        if holder is not None and holder.machine == self._holder.machine:
            return InputRejected(text, remedy="wait until it ends, or stop it")
        return WorkerGone(text, ReasonCode.FOLDER_IN_USE)

    def _write(self, handle: int) -> None:
        content = json.dumps(schema.to_json(self._holder)).encode()
        os.ftruncate(handle, len(content))
        os.pwrite(handle, content, 0)
        os.fsync(handle)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SEC):
            with contextlib.suppress(OSError):
                if self._read() == self._holder:
                    self._holder = dataclasses.replace(self._holder, beat=self._holder.beat + 1)
                    self._write(self._handle)


def _label(holder: Holder) -> str:
    return escape_controls(f"attempt {holder.attempt}, process {holder.pid} on {holder.host}")


def _machine() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()
