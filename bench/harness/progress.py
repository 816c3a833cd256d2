"""What people see of a running trial: a log on standard output, progress.json, steps.jsonl. None is a result."""

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
    """Lines with the seconds since the start, printed at once; the last ones are kept for the result."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._printing = True

    def __call__(self, message: str) -> None:
        line = f"[{self._clock():7.2f}s] {message}"
        self._tail.append(line)
        if self._printing:
            try:
                print(line, flush=True)
            except OSError:  # a full disk or a closed pipe ends the printing, not the measurement
                self._printing = False

    @property
    def tail(self) -> list[str]:
        return list(self._tail)


class ProgressFile:
    """Replaces progress.json in a folder, at most every 0.25 s unless the phase changed.

    Renamed into place, so a reader never sees half of it. No fsync: the file is worthless after a crash, and an fsync
    on a shared file system costs milliseconds.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        self._path = folder / PROGRESS_FILE
        self._part = folder / f".{PROGRESS_FILE}.part"
        self._log = log
        self._last: tuple[float, str] | None = None
        self._failed = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._last is not None and self._last[1] == progress.phase and now - self._last[0] < PROGRESS_INTERVAL_SEC:
            return
        self._last = (now, progress.phase)
        try:
            self._part.write_text(json.dumps(schema.to_json(progress)) + "\n", encoding="utf-8")
            os.replace(self._part, self._path)
        except OSError as error:
            if not self._failed:
                self._log(f"{self._path}: cannot be written: {error.strerror}; going on without it")
            self._failed = True


class StepsFile:
    """Adds lines to steps.jsonl in a folder: each step of a training and each held-out loss, as they come.

    Opened for each line, so that a line is there when it is written. No fsync: training.json has all of it in the end.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        """An earlier file is removed."""
        self._path, self._log = folder / STEPS_FILE, log
        self._failed = False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __call__(self, *lines: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:
            self._failed = True
            self._log(f"{self._path}: cannot be written: {error.strerror}; going on without it")
