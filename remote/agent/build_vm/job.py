"""Job on the build VM: runs one verb (build, push, archive, fetch) with log and progress, and writes the outcome.

`remote.image.vm_jobs` starts it in the job's folder. It prints the output of the engine's client (the job's log),
updates `progress.json`, and writes `outcome.json` last: the verb's facts, or the kind of failure.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.files import write_atomic
from remote.agent.shared.model_files import TOKEN_PIPE
from remote.agent.shared.secure_dir import ForeignOwner

PROGRESS_LINES = 60  # the last lines, which are sent with the progress once a second
MAX_LINE_CHARS = 300
MAX_LOG_CHARS = 256 << 20
PROGRESS_INTERVAL_SEC, STALL_LOG_SEC = 2.0, 60.0
RESERVE_FILE, RESERVE_BYTES = "outcome.reserve", 32 << 10  # given back for outcome.json if the disk is full by then
LOG_ONLY_LINES = re.compile(r"#\d+ sha256:")
_SECRET_TIMEOUT_SEC, _MAX_SECRET_BYTES = 120.0, 1 << 16


@contextlib.contextmanager
def wrap_os_errors(label: str) -> Iterator[None]:
    """Convert an OSError to a VmAgentError of kind full or failed, and ForeignOwner to one of kind refused.

    The message of an OSError has the file name, or else `label`.
    """
    try:
        yield
    except ForeignOwner as error:
        raise VmAgentError("refused", str(error)) from error
    except OSError as error:
        kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "failed"
        # tarfile's error has a message but no number if a file is shorter than its manifest says.
        raise VmAgentError(kind, f"{error.filename or label}: {error.strerror or error}") from error


class JobLog:
    """Log and progress of the job."""

    def __init__(self) -> None:
        self.started_at = time.monotonic()
        self.stage, self.state, self.line_count, self.written_at = "starting", "", 0, 0.0
        self.recent_lines: deque[tuple[float, str, str]] = deque(maxlen=PROGRESS_LINES)
        self.logged_chars = 0
        self.lock = threading.Lock()

    def add(self, line: str, stage: str | None = None) -> None:
        self.stage, self.state = stage or self.stage, ""
        if self.logged_chars <= MAX_LOG_CHARS:
            self.logged_chars += len(line)
            with contextlib.suppress(OSError):  # a full disk below the log must not end a build on another disk
                print(line if self.logged_chars <= MAX_LOG_CHARS else "... log truncated: it is too long", flush=True)
        if LOG_ONLY_LINES.match(line):
            return
        self.line_count += 1
        elapsed_sec = round(time.monotonic() - self.started_at, 1)
        self.recent_lines.append((elapsed_sec, self.stage, line[:MAX_LINE_CHARS]))
        if time.monotonic() - self.written_at > 0.3:
            self.write_progress()

    def show(self, state: str) -> None:
        """Report the state of the present step until the next line; it is not logged."""
        self.state = state
        self.write_progress()

    def write_progress(self) -> None:
        self.written_at = time.monotonic()
        document = {"count": self.line_count, "lines": list(self.recent_lines), "state": self.state}
        with self.lock, contextlib.suppress(OSError):  # a full disk is reported by the step that fails
            write_json(Path("progress.json"), document)


@contextlib.contextmanager
def report_progress(
    job_log: JobLog, label: str, read_sizes: Callable[[], tuple[int, int]], hint: str = ""
) -> Iterator[None]:
    """Show the bytes that are done, of how many, and their speed; log once a minute that they do not grow.

    `read_sizes` is called in another thread; `hint` ends the line about a stall.
    """
    started_at, initial_size, stopped = time.monotonic(), read_sizes()[0], threading.Event()

    def poll() -> None:
        size, changed_at, logged_at = initial_size, started_at, started_at
        while not stopped.wait(PROGRESS_INTERVAL_SEC):
            now, previous = time.monotonic(), size
            size, total = read_sizes()
            if size != previous:
                rate, changed_at, logged_at = (size - initial_size) / (now - started_at), now, now
                job_log.show(f"{label}: {size / 1e6:.1f} of {total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s")
            elif now - logged_at >= STALL_LOG_SEC:
                logged_at = now
                job_log.add(f"{label}: nothing new for {now - changed_at:.0f} s{hint}", "stalled")

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10.0)


def write_json(path: Path, document: object) -> None:
    write_atomic(path, json.dumps(document).encode())


def read_secret() -> str:
    """Read what `scripts/send_token.py` sends from the laptop to a new named pipe of this user, and delete the pipe."""
    os.mkfifo(TOKEN_PIPE, 0o600)
    try:
        with open(os.open(TOKEN_PIPE, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
            select.select([pipe], [], [], _SECRET_TIMEOUT_SEC)
            content = pipe.read(_MAX_SECRET_BYTES) or b""  # all of it: it is sent by one write
    finally:
        os.unlink(TOKEN_PIPE)
    if not content:
        raise VmAgentError("stopped", "no secret arrived from the laptop")
    return content.decode().strip()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # at the deadline: a verb cleans up at its end
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    job_log = JobLog()
    with contextlib.suppress(OSError):
        write_atomic(RESERVE_FILE, os.urandom(RESERVE_BYTES))
    try:
        verb = importlib.import_module(f"remote.agent.build_vm.{job['verb']}")
        with wrap_os_errors(str(job["verb"])):
            outcome = {"ok": True, **verb.run(job_log, job)}
    except VmAgentError as failed:
        outcome = {"ok": False, **failed.to_json()}
        job_log.add(f"failed: {failed}")
    except Exception as error:  # noqa: BLE001 - the job must leave an outcome; the log has the traceback
        with contextlib.suppress(OSError):
            traceback.print_exc(file=sys.stdout)
        outcome = {"ok": False, "kind": "failed", "message": f"{job.get('verb')}: {type(error).__name__}: {error}"}
    except KeyboardInterrupt:
        outcome = {"ok": False, "kind": "stopped", "message": "stopped"}
    with contextlib.suppress(OSError):
        os.unlink(RESERVE_FILE)
    write_json(Path("outcome.json"), outcome)
    job_log.write_progress()
    return 0 if outcome["ok"] else 1
