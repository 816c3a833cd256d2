"""Standard streams that survive a closed pipe and a full disk, and whose text cannot control the terminal.

A terminal executes control characters: it moves its cursor, sets its title, fills the clipboard. All printed text from
hosts, engines, clusters and models is escaped, also inside rich's output, which keeps rich's own sequences.
"""

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from bench.records.status import ExitCode
from reports.formatting import escape_text
from tasks.errors import RetryableError, TaskFailed

# Colours, and the sequences of a live table: cursor up and to the first column, erase line, hide and show the cursor.
_RICH_SEQUENCES = re.compile(r"(\x1b\[(?:[0-9;]*m|[0-9]*[AGK]|\?25[lh])|\r)")


class BrokenStdout(TaskFailed):
    """A closed pipe at standard output, as in `inv --list | head`. Ends without a message, like SIGPIPE."""

    exit_code = ExitCode.BROKEN_PIPE

    def __init__(self) -> None:
        super().__init__("")


class Stdout(io.FileIO):
    """Standard output that raises TaskFailed on the first failed write, and discards all later writes."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            _redirect_to_devnull(self.fileno())
            if isinstance(error, BrokenPipeError):
                raise BrokenStdout from error
            raise RetryableError(
                f"standard output cannot be written: {error.strerror}", remedy="fix that, then rerun the command"
            ) from error


class Stderr(io.FileIO):
    """Standard error that ignores failed writes; the exit code still reports the failure."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            _redirect_to_devnull(self.fileno())
            return len(data)


class SanitizedStream(io.TextIOWrapper):
    """Text stream that escapes everything that would control the terminal."""

    def write(self, text: str, /) -> int:
        return super().write(escape_text(text))

    @property
    def rich_proxied_file(self) -> "RichStdout":
        """Stream that rich writes to instead. Each new `Console` reads this attribute."""
        _patch_rich_rendering()
        return RichStdout(self)


def _patch_rich_rendering() -> None:
    """Make rich escape the text that it draws, so that sequences inside a table's cell are not taken for rich's own."""
    console: Any = sys.modules["rich.console"].Console  # loaded: only a `Console` reads `rich_proxied_file`
    render = console._render_buffer
    if render.__module__ != __name__:

        def escaped(self: Any, buffer: Iterable[Any]) -> Any:
            return render(
                self, [item if item.control else item._replace(text=escape_text(item.text)) for item in buffer]
            )

        console._render_buffer = escaped


class RichStdout:
    """View of a SanitizedStream for rich that keeps rich's colours and cursor movements."""

    def __init__(self, stream: SanitizedStream) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        return io.TextIOWrapper.write(self._stream, escape_rich_output(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escape_rich_output(text: str) -> str:
    """Escape rich's output, but keep rich's own sequences."""
    pieces = _RICH_SEQUENCES.split(text)
    return "".join(piece if index % 2 else escape_text(piece) for index, piece in enumerate(pieces))


def guard_standard_streams() -> None:
    """Make sys.stdout raise BrokenStdout or RetryableError on a failed write, and sys.stderr ignore it.

    Both escape terminal controls and characters that cannot be encoded. Closed streams become the null device. Bytes
    of standard input that cannot be decoded stay as surrogates. All are UTF-8 in every locale, as in child processes.
    """
    os.environ.update(PYTHONUTF8="1", PYTHONIOENCODING="utf-8")
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed; without this the next opened file would get this number
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _text_stream(Stdout(1, "w", closefd=False)), _text_stream(Stderr(2, "w", closefd=False))
    sys.stderr.reconfigure(line_buffering=True)
    if sys.stdin is None:  # it was closed, and is the null device now
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")


def _text_stream(raw: io.FileIO) -> SanitizedStream:
    return SanitizedStream(
        io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty(),
        write_through=getattr(sys.__stdout__, "write_through", False),
    )


def _redirect_to_devnull(number: int) -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, number)
    os.close(devnull)
