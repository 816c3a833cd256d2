"""Messages on a terminal, wrapped between words: the terminal itself would break them inside a word or a command."""

import re
import shutil
import textwrap
from typing import TextIO

_COMMAND = re.compile(r"`[^`]*`")
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def wrap_for_terminal(message: str, stream: TextIO) -> str:
    """Wrap a message to the terminal's width; elsewhere it stays one line. Commands in backticks stay whole."""
    if not stream.isatty():
        return message
    width = shutil.get_terminal_size().columns
    glued = _COMMAND.sub(lambda match: match[0].replace(" ", _NO_BREAK_SPACE), message)
    lines = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_NO_BREAK_SPACE, " ") if width > 0 else message
