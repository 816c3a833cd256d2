"""Live output of a running trial: a log on standard output, progress.json and steps.jsonl. The result is separate."""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.paths import PROGRESS_FILE, STEPS_FILE
from bench.records.run import Progress

TAIL_LINES = 40
PROGRESS_INTERVAL_SEC = 0.25


class Log:
    """Log of lines with the seconds since the start, printed at once; the last lines go into the result."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._is_printing = True

    def __call__(self, message: str) -> None:
        line = f"[{self._clock():7.2f}s] {message}"
        self._tail.append(line)
        if self._is_printing:
            try:
                print(line, flush=True)
            except OSError:  # a full disk or a closed pipe stops the printing, not the measurement
                self._is_printing = False

    @property
    def tail(self) -> list[str]:
        return list(self._tail)


class ProgressFile:
    """Writer of progress.json, at most every 0.25 s unless the phase changed.

    The file is renamed into place, so a reader never sees a part of it. No fsync: the file is useless after a crash,
    and an fsync on a shared file system costs milliseconds.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        self._path = folder / PROGRESS_FILE
        self._part = folder / f".{PROGRESS_FILE}.part"
        self._log = log
        self._last: tuple[float, str] | None = None
        self._has_failed = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._last is not None and self._last[1] == progress.phase and now - self._last[0] < PROGRESS_INTERVAL_SEC:
            return
        self._last = (now, progress.phase)
        try:
            self._part.write_text(json.dumps(schema.to_json(progress)) + "\n", encoding="utf-8")
            os.replace(self._part, self._path)
        except OSError as error:
            if not self._has_failed:
                self._log(f"{self._path}: cannot be written: {error.strerror}; continuing without it")
            self._has_failed = True


class StepsFile:
    """Writer of steps.jsonl: appends each step of a training and each held-out loss at once.

    The file is opened for each write, so that a line is visible at once. No fsync: training.json repeats all of it.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        """Remove an earlier file."""
        self._path, self._log = folder / STEPS_FILE, log
        self._has_failed = False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __call__(self, *lines: Mapping[str, Any]) -> None:
        if self._has_failed:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:
            self._has_failed = True
            self._log(f"{self._path}: cannot be written: {error.strerror}; continuing without it")
