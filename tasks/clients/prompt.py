"""Secrets from the terminal and in files. Needs no settings, because kubectl's credential program uses it, too."""

import getpass
import shlex
import stat
import sys
from pathlib import Path

from tasks.errors import UsageError, file_errors


def prompt_hidden(prompt: str) -> str:
    """Prompt for hidden input. Returns "" without a terminal. Raises UsageError for unusable input."""
    if sys.stdin is None or not sys.stdin.isatty():
        return ""
    try:
        return check_utf8(getpass.getpass(prompt))
    except (EOFError, UnicodeError) as error:  # Ctrl-D; not the terminal's encoding
        raise UsageError(
            f"{prompt.strip(' :')}: the input was empty or not text", remedy="rerun the command"
        ) from error


def check_utf8(text: str) -> str:
    """Return the text. Raises UnicodeError if it cannot be encoded as UTF-8."""
    text.encode()
    return text


def check_private(path: Path, name: object) -> None:
    """Check that other users can neither read nor write the file, `name` in messages. Raises UsageError."""
    with file_errors(f"{name}: cannot be read"):
        mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{name}: other users may access it", remedy=f"type: chmod 600 {shlex.quote(str(path))}")
