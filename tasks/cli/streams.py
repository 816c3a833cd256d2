"""Standard output and error that may fail: nobody reads any more, or the disk that they go to is full."""

import io
import os
import signal
import sys
from typing import Any, ClassVar

from tasks.errors import Resumable, TaskFailed


class NobodyReads(TaskFailed):
    """Whoever read standard output has gone, as in `inv --list | head`. Ends without a word, as SIGPIPE would."""

    exit_code: ClassVar[int] = 128 + signal.SIGPIPE

    def __init__(self) -> None:
        super().__init__("")


class _Output(io.FileIO):
    """Standard output. What was not written is lost; from then on nothing is written."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            _to_nowhere(self.fileno())
            if isinstance(error, BrokenPipeError):
                raise NobodyReads from None
            raise Resumable(
                f"standard output cannot be written: {error.strerror}; repair that, then type the same again"
            ) from None


class _Complaints(io.FileIO):
    """Standard error. Where it cannot be written, nobody can be told: the exit code still says it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            _to_nowhere(self.fileno())
            return len(data)


def guard_standard_streams() -> None:
    """Make sys.stdout raise NobodyReads or Resumable where it cannot be written, and sys.stderr nothing.

    What cannot be encoded is written as escapes; a stream that is closed goes nowhere.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed: else the next file that is opened would get this number
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _text(_Output(1, "w", closefd=False)), _text(_Complaints(2, "w", closefd=False))
    sys.stderr.reconfigure(line_buffering=True)


def _text(raw: io.FileIO) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty(),
        write_through=getattr(sys.__stdout__, "write_through", False),
    )


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
