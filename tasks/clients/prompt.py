"""Hidden input from the terminal. Needs no settings, because kubectl's credential program uses it, too."""

import getpass
import sys

from tasks.errors import UsageError


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
