"""Signs of life while something takes long: a moving line on a terminal, a line every half minute elsewhere."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from reports import formatting
from tasks.cli import terminal
from tasks.errors import escape_controls

FRAMES_PER_SEC = 4
PULSE_SEC = 30.0  # the longest silence without a terminal
QUIET_SEC = 3.0  # a wait that is shorter shows nothing


class View:
    """Base of live displays: redraws on a terminal, prints lines elsewhere. Use as a context manager.

    TERM=dumb gives lines on a terminal, too. A subclass defines `render` (drawn repeatedly) and `summary` (printed at
    the end, and by `pulse` after PULSE_SEC of silence).
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console if console is not None else terminal.console(soft_wrap=False)
        self._is_plain = not self._console.is_terminal or os.environ.get("TERM") == "dumb"
        self._clock, self._started = clock, clock()
        self._printed_at = self._started
        # Do not hold this lock while printing: Live's thread holds Live's lock while it waits for this one.
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._ended = threading.Event()

    def render(self) -> RenderableType:
        raise NotImplementedError

    def summary(self) -> Text:
        raise NotImplementedError

    def pulse(self) -> None:
        """Print that it goes on."""
        self._print(self.summary())

    def __enter__(self) -> Self:
        if isinstance(sys.stdout, FileProxy):  # another view draws on this terminal, and this one only prints
            return self
        if self._is_plain:
            threading.Thread(target=self._beat, daemon=True, name="pulse").start()
            return self
        self._live = Live(
            get_renderable=self.render,
            console=self._console,
            refresh_per_second=FRAMES_PER_SEC,
            transient=True,  # remove the drawing at the end; printed lines stay
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._print(self.summary())

    def _stop(self) -> None:
        self._ended.set()
        if self._live is not None:
            self._live.stop()

    def _beat(self) -> None:
        while not self._ended.wait(max(1.0, self._printed_at + PULSE_SEC - self._clock())):
            if self._clock() - self._printed_at >= PULSE_SEC:
                self.pulse()

    def _with_time(self, *parts: Text | str) -> Text:
        return Text.assemble((f"[{formatting.clock(self._clock() - self._started)}]", "dim"), " ", *parts)

    def _escaped(self, text: str, style: str = "") -> Text:
        encoding = self._console.encoding
        return Text(escape_controls(text).encode(encoding, "backslashreplace").decode(encoding), style=style)

    def _print(self, line: Text) -> None:
        self._printed_at = self._clock()
        try:
            # Do not wrap: a pipe has no width, and readers of a log need whole lines.
            self._console.print(line, soft_wrap=True)
        except (OSError, SystemExit):
            # The reader is gone (`inv bench | head`); rich turns a broken pipe into SystemExit. The run continues.
            self._console.quiet = True


class Wait(View):
    """Wait for what `text` says, or returns now, with the elapsed time; nothing remains of the line."""

    def __init__(
        self,
        text: str | Callable[[], str],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, clock)
        self._text = text

    def set_text(self, text: str) -> None:
        """Wait for another text from now on."""
        self._text = text

    def render(self) -> RenderableType:
        return self.summary() if self._clock() - self._started >= QUIET_SEC else Text("")

    def summary(self) -> Text:
        text = self._text if isinstance(self._text, str) else self._text()
        return self._with_time(self._escaped(text))

    def __exit__(self, *_: object) -> None:
        self._stop()
