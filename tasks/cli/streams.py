"""Standard streams that survive a closed pipe and a full disk, and whose text cannot control the terminal.

A terminal executes control characters: it moves its cursor, sets its title, fills the clipboard. All printed text from
hosts, engines, clusters and models is escaped, also inside rich's output, which keeps rich's own sequences.
"""

import io
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from shutil import get_terminal_size
from typing import Any

from bench.records.status import ExitCode
from reports.formatting import escape_text
from tasks.errors import RetryableError, TaskFailed

# Colours, links to files, and the sequences of a live table: cursor up and to the first column, erase line, hide and
# show the cursor.
_RICH_SEQUENCES = re.compile(
    r"(\x1b\[(?:[0-9;]*m|[0-9]*[AGK]|\?25[lh])|\x1b\]8;(?:id=[0-9]+;file:///[!-~]*|;)\x1b\\|\r)"
)
# What is drawn beyond ASCII: symbols of checks, bars and the lines of rich's tables, for a terminal without them.
ASCII_SYMBOLS = str.maketrans(
    {"✓": "+", "✗": "x", "–": "-", "—": "-", "·": "|", "…": "...", "█": "#", "━": "#", "╸": "#", "╺": ".", "╌": "."}  # noqa: RUF001
    | dict.fromkeys("─╴╶╷╵", "-")
    | {"│": "|"}
)
GLUE = "\U000f0020"  # for private use: a space at which no line is broken, until it is written
_COMMAND = re.compile(r"`[^`\n]*`")


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
    """Text stream that escapes everything that would control the terminal.

    `is_ascii`: symbols are written in ASCII, because the encoding or the user's locale (LC_ALL=C) has no others.
    `is_terminal`: lines are wrapped between words; the terminal would break them inside a word or a command.
    """

    is_ascii = is_terminal = False

    def write(self, text: str, /) -> int:
        escaped = escape_text(text)
        return super().write(self.draw(wrap(escaped, get_terminal_size().columns) if self.is_terminal else escaped))

    def draw(self, text: str) -> str:
        """Replace symbols that the reader's terminal may not have."""
        return text if not self.is_ascii or text.isascii() else text.translate(ASCII_SYMBOLS)

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
        return io.TextIOWrapper.write(self._stream, self._stream.draw(escape_rich_output(text)).replace(GLUE, " "))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def glue_commands(text: str) -> str:
    """Replace the spaces of commands in backticks, at which no line may be broken."""
    return _COMMAND.sub(lambda match: match[0].replace(" ", GLUE), text)


def escape_rich_output(text: str) -> str:
    """Escape rich's output, but keep rich's own sequences."""
    pieces = _RICH_SEQUENCES.split(text)
    return "".join(piece if index % 2 else escape_text(piece) for index, piece in enumerate(pieces))


def wrap(text: str, width: int) -> str:
    """Wrap lines longer than `width`. Commands in backticks stay whole, and lines of JSON are not changed."""
    if len(text) <= width or width <= 0:
        return text
    return "\n".join(line if len(line) <= width else _wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    content = line.lstrip()
    if content.startswith(("{", "}", "[", "]", '"')):
        return line
    return "\n".join(
        textwrap.wrap(
            glue_commands(line),
            width,
            subsequent_indent=line[: len(line) - len(content)],
            break_long_words=False,
            break_on_hyphens=False,
            expand_tabs=False,
            replace_whitespace=False,
        )
    ).replace(GLUE, " ")


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
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    stream = SanitizedStream(
        io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty(),
        write_through=getattr(sys.__stdout__, "write_through", False),
    )
    stream.is_terminal = raw.isatty()
    stream.is_ascii = not encoding.lower().startswith("utf") or _is_c_locale()
    return stream


def _is_c_locale() -> bool:
    """Check whether the user has set the C locale. Python then writes UTF-8 all the same (PEP 540)."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, names), "") in ("C", "POSIX")


def _redirect_to_devnull(number: int) -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, number)
    os.close(devnull)
