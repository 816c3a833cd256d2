"""What runs on the build VM as a detached job: an image is built, pushed, archived or loaded.

`remote.image.vmjob` puts this file and the modules of each verb into the job's folder and starts `main` there. Standard
library alone, Python 3.9 or newer. It prints what the engine's client says (the job's log), keeps `progress.json` for
whoever watches, and writes `outcome.json` last: what came of it, or which kind of failure it was. Nothing here knows
the laptop.
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
SHOWN_LINES = 60  # ride along with the progress, once a second
LINE_CHARS = 300
FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
# Each a failure that was seen to pass by itself: a connection cut or refused, a registry restarting or overloaded, and
# an upload session that the registry forgot (often after a commit that succeeded).
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
    """It did not work. `kind` is full, transient, unauthorized, usage, refused, changed, stopped or failed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Watcher:
    """The log and the progress that whoever watches this job sees."""

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
        if NOISE.match(line):  # in the log, and not worth a person's eye
            return
        self.count += 1
        self.lines.append((round(time.monotonic() - self.began, 1), line[:LINE_CHARS]))
        if time.monotonic() - self.written > 0.3:
            self.write()

    def look_at_disk(self) -> None:
        """Keep the least room that `disk` was seen to have: a step that ran out of it often fails without saying so."""
        if self.disk is not None:
            with contextlib.suppress(OSError):  # a folder this user may not look into tells nothing
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
    """What `act` returns; a failure that passes is tried again, ATTEMPTS times in all. Raises Failed."""
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
    """Run the engine's client to its end; its exit code and last lines. Its words go to log and progress."""
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
            found = STAGE.match(line)
            watcher.say(line, found[1] if found else None)
            last.append(line)
    watcher.write()
    return process.returncode, list(last)


def reason(lines: list[str], code: int) -> Failed:
    """Which kind of failure the client's last lines tell of, and the line that tells it."""
    told = [line for line in lines if re.search(r"error|denied|unauthorized|fail", line, re.IGNORECASE)] or lines
    message = told[-1] if told else f"exit {code}, without a word"
    kind = "failed"
    # A step that ran out of space says so itself, some way above the client's own last words.
    for name, pattern, where in (
        ("full", FULL, lines),
        ("unauthorized", UNAUTHORIZED, lines[-30:]),
        ("transient", TRANSIENT, lines[-30:]),
    ):
        found = [line for line in where if pattern.search(line)]
        if found:
            kind, message = name, found[-1]
            break
    return Failed(kind, re.sub(r"^#\d+ +(?:[\d.]+ +)?", "", message)[:LINE_CHARS])


def ask(docker: list[str], environment: dict[str, str], *words: str) -> Any:
    """The client's JSON answer, or None where it fails."""
    try:
        said = subprocess.run(
            [*docker, *words], env={**os.environ, **environment}, capture_output=True, timeout=ASK_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        asked = " ".join(words)
        raise Failed("transient", f"the engine did not answer `{asked}` within {ASK_SEC:.0f} s") from None
    return json.loads(said.stdout) if said.returncode == 0 else None


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
