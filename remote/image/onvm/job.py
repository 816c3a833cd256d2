"""The job on the build VM: runs one verb (build, push, archive, fetch), keeps log and progress, writes the outcome.

`remote.image.vmjob` starts it in the job's folder. It prints the output of the engine's client (the job's log), keeps
`progress.json` current, and writes `outcome.json` last: the verb's facts, or the kind of failure.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from remote.jobs.onhost.basics import write_atomic

Result = TypeVar("Result")
ASK_SEC = 120.0
ATTEMPTS = 5
SHOWN_LINES = 60  # come with the progress, once a second
LINE_CHARS = 300
FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
# Failures that were seen to pass: a connection cut or refused, a registry restarting or overloaded, and an upload
# session that the registry forgot (often after a commit that succeeded).
TRANSIENT = re.compile(
    r"connection reset|broken pipe|unexpected eof|\beof\b|i/o timeout|tls handshake timeout|connection refused"
    r"|no route to host|network is unreachable|context deadline exceeded|blob upload unknown|blob_upload_unknown"
    r"|use of closed network connection|(?:status|code|http)[^\n]{0,40}\b(?:429|500|502|503|504)\b"
    r"|bad gateway|service unavailable|too many requests|gateway time-?out|internal server error",
    re.IGNORECASE,
)
UNAUTHORIZED = re.compile(r"unauthorized|authentication required|no basic auth credentials|denied:", re.IGNORECASE)
NOISE = re.compile(r"#\d+ sha256:|[0-9a-f]{12}: (Preparing|Waiting)$")
STAGE = re.compile(r"#\d+ \[([^\]]+)\]")


class Failed(Exception):
    """The job failed. `kind` is full, transient, unauthorized, usage, refused, changed, stopped or failed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Watcher:
    """The job's log and progress."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.stage, self.count, self.written = "starting", 0, 0.0
        self.lines: deque[tuple[float, str]] = deque(maxlen=SHOWN_LINES)
        self.disk: str | None = None
        self.least_free_bytes: float = float("inf")

    def say(self, line: str, stage: str | None = None) -> None:
        self.stage = stage or self.stage
        self.look_at_disk()
        print(line, flush=True)
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


def retried(watcher: Watcher, act: Callable[[], Result], first_wait_sec: float) -> Result:
    """What `act` returns; transient failures are tried again, ATTEMPTS times in all. Raises Failed."""
    for attempt in range(1, ATTEMPTS):
        try:
            return act()
        except Failed as failure:
            if failure.kind != "transient":
                raise
            watcher.say(f"{failure}; trying again ({attempt} of {ATTEMPTS - 1})")
        time.sleep(first_wait_sec * 2 ** (attempt - 1))
    return act()


def follow(watcher: Watcher, argv: list[str], environment: dict[str, str]) -> tuple[int, list[str]]:
    """Run the engine's client to its end; its exit code and last lines. Its output goes to log and progress."""
    last: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        for raw in process.stdout:
            line = raw.rstrip()
            if not line:
                continue
            stage = STAGE.match(line)
            watcher.say(line, stage[1] if stage else None)
            last.append(line)
    watcher.write()
    return process.returncode, list(last)


def reason(lines: list[str], code: int) -> Failed:
    """The kind of failure, and the line of the client's output that shows it."""
    errors = [line for line in lines if re.search(r"error|denied|unauthorized|fail", line, re.IGNORECASE)] or lines
    kind, message = "failed", errors[-1] if errors else f"exit {code}, no message"
    # A step that ran out of space reports it some way above the client's own last lines.
    for name, pattern, count in (("full", FULL, 0), ("unauthorized", UNAUTHORIZED, 30), ("transient", TRANSIENT, 30)):
        if matching := [line for line in lines[-count:] if pattern.search(line)]:
            kind, message = name, matching[-1]
            break
    return Failed(kind, re.sub(r"^#\d+ +(?:[\d.]+ +)?", "", message)[:LINE_CHARS])


def ask(docker: list[str], environment: dict[str, str], *words: str) -> Any:
    """The client's JSON answer; None if it fails."""
    try:
        ended = subprocess.run(
            [*docker, *words], env={**os.environ, **environment}, capture_output=True, timeout=ASK_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        asked = " ".join(words)
        raise Failed("transient", f"the engine did not answer `{asked}` within {ASK_SEC:.0f} s") from None
    return json.loads(ended.stdout) if ended.returncode == 0 else None


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    watcher = Watcher()
    try:
        verb = importlib.import_module(f"remote.image.onvm.{job['verb']}")
        outcome = {"ok": True, **verb.act(watcher, job)}
    except Failed as failed:
        outcome = {"ok": False, "kind": failed.kind, "message": str(failed)}
        watcher.say(f"failed: {failed}")
    except KeyboardInterrupt:
        outcome = {"ok": False, "kind": "stopped", "message": "stopped"}
    watcher.write()
    write_json(Path("outcome.json"), outcome)
    return 0 if outcome["ok"] else 1
