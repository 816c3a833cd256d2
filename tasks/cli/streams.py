"""Standard output and error: nobody may read any more, their disk may be full, and no text orders a terminal about."""

import io
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from tasks.cli.sanitize import drawn, plain
from tasks.errors import RetryableError, TaskFailed


class BrokenStdout(TaskFailed):
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
                raise BrokenStdout from None
            raise RetryableError(
                f"standard output cannot be written: {error.strerror}; repair that, then type the same again"
            ) from None


class Stderr(io.FileIO):
    """Standard error. Where it cannot be written, nobody can be told: the exit code still says it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            _to_nowhere(self.fileno())
            return len(data)


class SanitizedStream(io.TextIOWrapper):
    """Text for people, from whomever it comes: no word of it is an order to the terminal."""

    def write(self, text: str, /) -> int:
        return super().write(plain(text))

    @property
    def rich_proxied_file(self) -> "RichStdout":
        """What rich writes to instead: each `Console` asks for it when it is made."""
        _escape_what_is_drawn()
        return RichStdout(self)


def _escape_what_is_drawn() -> None:
    """From now on rich escapes the text of what it draws: in a cell of a table, words like its own are not its own."""
    console: Any = sys.modules["rich.console"].Console  # which asks, so it is loaded
    render = console._render_buffer
    if render.__module__ != __name__:

        def escaped(self: Any, buffer: Iterable[Any]) -> Any:
            return render(self, [one if one.control else one._replace(text=plain(one.text)) for one in buffer])

        console._render_buffer = escaped


class RichStdout:
    """The same stream for rich, whose colours and cursor stay."""

    def __init__(self, stream: SanitizedStream) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        return io.TextIOWrapper.write(self._stream, drawn(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_standard_streams() -> None:
    """Make sys.stdout raise NobodyReads or Resumable where it cannot be written, and sys.stderr nothing.

    What a terminal would obey is written as escapes, and so is what cannot be encoded; a stream that is closed goes
    nowhere. What is read and cannot be decoded is no reason to stop, whatever the locale: it stays as it came.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed: else the next file that is opened would get this number
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _text(_Output(1, "w", closefd=False)), _text(Stderr(2, "w", closefd=False))
    sys.stderr.reconfigure(line_buffering=True)
    if sys.stdin is None:  # closed, and the null device by now
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _text(raw: io.FileIO) -> SanitizedStream:
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return SanitizedStream(
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
