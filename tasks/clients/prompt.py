"""What a person types unseen. It reads no settings: the program that kubectl runs for a token needs it, too."""

import getpass
import sys

from tasks.errors import UsageError


def typed(prompt: str) -> str:
    """What is typed on the terminal; empty where nobody can answer. Raises UsageError."""
    if sys.stdin is None or not sys.stdin.isatty():
        return ""
    try:
        return encodable(getpass.getpass(prompt))
    except (EOFError, UnicodeError):  # Ctrl-D; another encoding than the terminal's
        raise UsageError(f"{prompt.strip(' :')}: nothing that can be used was typed; type the same again") from None


def encodable(text: str) -> str:
    """The text, whose bytes are UTF-8. Raises UnicodeError."""
    text.encode()
    return text
