"""Pictures of a terminal for the documentation: `python -m tests.terminal_pictures` writes docs/terminal/*.svg.

Each picture's commands are typed into a shell of 80 columns in tmux, as a person would type them; what the terminal
then shows, with its colours, is drawn by rich. Text stays text: the files are small, and need no font of their own.
Those of docs/tutorials/laptop.md are drawn by name, in a clone in which that page's commands have been typed.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from tests.support.paths import ROOT

FOLDER = ROOT / "docs" / "terminal"
PICTURES: dict[str, tuple[str, ...]] = {"list": ("inv",)}
TUTORIAL = {
    "laptop-data": ("export INVOKE_RUNTIME_CONFIG=docs/demo-train.yaml", "inv data.check"),
    "laptop-report": ("inv report",),
    "laptop-runs": ("inv runs",),
}
COLUMNS, ROWS, TIMEOUT_SEC = 80, 250, 60.0
MAX_BYTES = 150 * 1024
PROMPT = "$"
_TITLE_PIXELS = 32.0  # that rich leaves above the terminal for its title
THEME = TerminalTheme(
    (250, 250, 250),
    (36, 41, 47),
    [
        (36, 41, 47),
        (207, 34, 46),
        (17, 99, 41),
        (77, 45, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (87, 96, 106),
    ],
)
# Without rich's window buttons and web font: a page of documentation loads nothing else.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
<rect fill="#fafafa" stroke="#d0d7de" stroke-width="2" width="100%" height="100%" rx="8" />
<g transform="translate({terminal_x}, 9)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""


def main(*names: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        picture = draw(name, record((PICTURES | TUTORIAL)[name]))
        if len(picture) > MAX_BYTES:
            sys.exit(f"{name}: {len(picture)} bytes are more than {MAX_BYTES}; show less")
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(f"docs/terminal/{name}.svg: {len(picture) // 1000} kB")


def record(lines: Sequence[str]) -> str:
    """Type the lines into a shell of its own and return the screen with its escape sequences."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, _shell(Path(home)) as tmux:
        for count, line in enumerate(lines, 1):
            tmux("send-keys", "-l", line)
            tmux("send-keys", "Enter")
            _wait_for_prompts(tmux, count + 1)
        screen = tmux("capture-pane", "-p", "-e")
    return screen.rstrip().removesuffix(PROMPT).rstrip()


@contextlib.contextmanager
def _shell(home: Path) -> Iterator["_Tmux"]:
    server = f"pictures-{os.getpid()}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": path, "PS1": f"{PROMPT} ", "LANG": "C.UTF-8"}
    command = ("env", "-i", *(f"{name}={value}" for name, value in environment.items()), "TERM=tmux-256color")
    tmux = _Tmux(server)
    size = ("-x", str(COLUMNS), "-y", str(ROWS))
    tmux("-f", os.devnull, "new-session", "-d", *size, "-c", str(ROOT), *command, "bash", "--norc")
    try:
        _wait_for_prompts(tmux, 1)
        yield tmux
    finally:
        tmux("kill-server")


class _Tmux:
    """Client of a tmux server that no other program uses."""

    def __init__(self, server: str) -> None:
        self._server = server

    def __call__(self, *arguments: str) -> str:
        argv = ("tmux", "-L", self._server, *arguments)
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=TIMEOUT_SEC).stdout


def _wait_for_prompts(tmux: _Tmux, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SEC
    while time.monotonic() < deadline:
        lines = tmux("capture-pane", "-p").rstrip().splitlines()
        if sum(line.startswith(PROMPT) for line in lines) == count and lines[-1] == PROMPT:
            return
        time.sleep(0.1)
    sys.exit(f"no prompt after {TIMEOUT_SEC:.0f} s")


def draw(name: str, screen: str) -> str:
    """Return the screen as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    decoder = AnsiDecoder()  # a style lasts over the lines into which the terminal breaks one
    for line in screen.splitlines():
        text = decoder.decode_line(line)
        if line.startswith(PROMPT):
            text.stylize("bold")
        console.print(text, soft_wrap=True)
    picture = console.export_svg(title="", theme=THEME, code_format=SVG, unique_id=name)
    height = re.search(r'viewBox="0 0 \S+ (\S+)"', picture)
    assert height is not None
    return picture.replace(height[0], height[0].replace(height[1], f"{float(height[1]) - _TITLE_PIXELS:g}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
