"""Escapes for text from hosts, engines, clusters and models, so that it cannot control the operator's terminal.

A terminal executes control characters: it moves its cursor, sets its title, fills the clipboard. `tasks.cli.streams`
passes all printed text through `escape_text`, also the text inside rich's output, and rich's whole output through
`escape_rich_output`, which keeps rich's own sequences.
"""

import re

from reports.formatting import escape_text

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


def glue_commands(text: str) -> str:
    """Replace the spaces of commands in backticks, at which no line may be broken."""
    return _COMMAND.sub(lambda match: match[0].replace(" ", GLUE), text)


def escape_rich_output(text: str) -> str:
    """Escape rich's output, but keep rich's own sequences."""
    pieces = _RICH_SEQUENCES.split(text)
    return "".join(piece if index % 2 else escape_text(piece) for index, piece in enumerate(pieces))
