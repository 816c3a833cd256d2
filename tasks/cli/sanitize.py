"""Text from hosts, engines, clusters and models on the operator's terminal: it is shown and never obeyed.

A terminal acts on control characters: it moves its cursor, sets its title, fills the clipboard. `tasks.cli.streams`
puts everything that is printed through `plain`, also the text of what rich draws, and the whole of it through `drawn`,
which lets rich's own words pass.
"""

import re

# Controls but line break and tab, line and paragraph separators, changes of direction, and lone surrogates.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Colours; and of a live table: cursor up and to the first column, a line erased, the cursor hidden and shown.
_OF_RICH = re.compile(r"(\x1b\[(?:[0-9;]*m|[0-9]*[AGK]|\?25[lh])|\r)")


def plain(text: str) -> str:
    """`text` with everything that a terminal would obey as \\uXXXX, which in JSON is the same text."""
    return text if text.isascii() and text.isprintable() else _ORDERS.sub(_shown, text)


def drawn(text: str) -> str:
    """`text` that rich has drawn: its own words stay."""
    pieces = _OF_RICH.split(text)
    return "".join(piece if index % 2 else plain(piece) for index, piece in enumerate(pieces))


def _shown(order: re.Match[str]) -> str:
    return f"\\u{ord(order[0]):04x}"
