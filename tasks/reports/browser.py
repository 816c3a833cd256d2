"""`--open`: show a page in this machine's web browser."""

import os
import sys
import webbrowser
from pathlib import Path

from tasks.errors import TaskFailed, UsageError
from tasks.settings.sources import display_path


def check_browser(task: str) -> None:
    """Raise UsageError if this machine has no web browser, or no display to draw it on."""
    has_display = not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    try:
        webbrowser.get()
        problem = None if has_display or "BROWSER" in os.environ else "this machine has no display"
    except webbrowser.Error:
        problem = "no web browser was found"
    if problem is not None:
        remedy = "copy the report's folder to a machine with a browser, or name a browser in BROWSER"
        raise UsageError(f"{task}: --open: {problem}", remedy=remedy)


def open_page(path: Path) -> None:
    """Open a file in the web browser. Raises TaskFailed if the browser does not start."""
    if not webbrowser.open(path.resolve().as_uri()):
        raise TaskFailed(f"{display_path(path)}: the web browser did not open it", remedy="open the file yourself")
