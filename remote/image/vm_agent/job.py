"""The job on the build VM: runs one verb (build, push, archive, fetch), keeps log and progress, writes the outcome.

`remote.image.vm_jobs` starts it in the job's folder. It prints the output of the engine's client (the job's log), keeps
`progress.json` current, and writes `outcome.json` last: the verb's facts, or the kind of failure.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from remote.jobs.host_agent.util import write_atomic

Result = TypeVar("Result")
ATTEMPTS = 5
SHOWN_LINES = 60  # come with the progress, once a second
LINE_CHARS = 300
LOG_BYTES = 256 << 20
NOISE = re.compile(r"#\d+ sha256:|[0-9a-f]{12}: (Preparing|Waiting)$")


class Failed(Exception):
    """The job failed.

    `kind` is full, transient, unauthorized, forbidden, absent, usage, refused, changed, stopped or failed.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """An OSError inside raises Failed, of kind full or failed, that names its file, or else `what`."""
    try:
        yield
    except OSError as error:
        kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "failed"
        # tarfile gives only a message, no number, for a file that is shorter than its manifest says.
        raise Failed(kind, f"{error.filename or what}: {error.strerror or error}") from None


class Watcher:
    """The job's log and progress."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.stage, self.count, self.written = "starting", 0, 0.0
        self.lines: deque[tuple[float, str]] = deque(maxlen=SHOWN_LINES)
        self.disk: str | None = None
        self.least_free_bytes: float = float("inf")
        self.logged = 0

    def say(self, line: str, stage: str | None = None) -> None:
        self.stage = stage or self.stage
        self.look_at_disk()
        if self.logged <= LOG_BYTES:
            self.logged += len(line)
            print(line if self.logged <= LOG_BYTES else "... the log ends here: it is too long", flush=True)
        if NOISE.match(line):  # for the log only
            return
        self.count += 1
        self.lines.append((round(time.monotonic() - self.began, 1), line[:LINE_CHARS]))
        if time.monotonic() - self.written > 0.3:
            self.write()

    def look_at_disk(self) -> None:
        """Keep the least free space seen on `disk`: a step that runs out of it often fails without saying so."""
        if self.disk is not None:
            with contextlib.suppress(OSError):  # a folder that this user may not read
                room = os.statvfs(self.disk)
                self.least_free_bytes = min(self.least_free_bytes, room.f_bavail * room.f_frsize)

    def write(self) -> None:
        self.written = time.monotonic()
        document = {"stage": self.stage, "count": self.count, "lines": list(self.lines)}
        with contextlib.suppress(OSError):  # a full disk is reported by what it stops
            write_json(Path("progress.json"), document)


def write_json(path: Path, document: object) -> None:
    write_atomic(path, json.dumps(document).encode())


def with_retries(
    act: Callable[[], Result], first_wait_sec: float, say: Callable[[str], object] = lambda _line: None
) -> Result:
    """What `act` returns; transient failures are said and tried again, ATTEMPTS times in all. Raises Failed."""
    for attempt in range(1, ATTEMPTS):
        try:
            return act()
        except Failed as failure:
            if failure.kind != "transient":
                raise
            say(f"{failure}; trying again ({attempt} of {ATTEMPTS - 1})")
        time.sleep(first_wait_sec * 2 ** (attempt - 1))
    return act()


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    watcher = Watcher()
    try:
        verb = importlib.import_module(f"remote.image.vm_agent.{job['verb']}")
        with failing(str(job["verb"])):
            outcome = {"ok": True, **verb.act(watcher, job)}
    except Failed as failed:
        outcome = {"ok": False, "kind": failed.kind, "message": str(failed)}
        watcher.say(f"failed: {failed}")
    except KeyboardInterrupt:
        outcome = {"ok": False, "kind": "stopped", "message": "stopped"}
    watcher.write()
    write_json(Path("outcome.json"), outcome)
    return 0 if outcome["ok"] else 1
