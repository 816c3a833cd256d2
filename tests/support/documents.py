"""Code blocks of the documents, and the commands that they show.

A fenced block `sh` of a tutorial is typed by a test, line by line; `sh machine` on another machine; `sh by-hand` is
not. `yaml FILE` and `python FILE` are files that the reader writes; `text` is output. In other documents, commands and
output are mixed in indented blocks.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

FOLDERS = ("docs", "image", "manifests", "reports", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
TUTORIALS = ROOT / "docs" / "tutorials"
BY_HAND = "by-hand"
PROGRAMS = ("inv", "make", "pytest", "python")
_FENCE = re.compile(r"^```(.*)$")
_COMMAND = re.compile(rf"(?:\w+=\S* |\. \S+ && |cd \S+ && )*(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}) ")
_END = "END-OF-FILE"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
_UNTYPED = re.compile(r"\[-[^\]]*\]|\.\.\.$|\d?>&?\s*\S+")  # optional flags, an ellipsis, redirections
_OPEN_QUOTE = re.compile(r"^[^']*'[^']*$")  # a text over several lines
_SEPARATORS = {"&&", "||", "|", ";", "&"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block. `info` has the words after the fence; an indented block has none. `line` counts from 1."""

    section: str
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def is_typed(self) -> bool:
        """Return whether a tutorial's test types it."""
        return self.info[:1] == ("sh",) and BY_HAND not in self.info

    def lines(self) -> list[str]:
        """Return the lines, with those that end in a backslash joined to the next."""
        return re.sub(r" *\\\n *", " ", self.text).splitlines()


def blocks(path: Path) -> list[Block]:
    """Return the fenced and the indented code blocks of a document, in order."""
    parsed: list[Block] = []
    section, info, first = "", None, 0
    lines: list[str] = []
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), "# end"], start=1):
        fence = _FENCE.match(line)
        is_indented = info is None and line.startswith("    ")
        if lines and info is None and line.strip() and not is_indented:
            parsed.append(Block(section=section, line=first, info=(), text="\n".join(lines)))
            lines = []
        if fence and info is None:
            info, first = tuple(fence[1].split()), number + 1
        elif fence and info is not None:
            parsed.append(Block(section=section, line=first, info=info, text="\n".join(lines)))
            info, lines = None, []
        elif info is not None or is_indented:
            first = first if lines else number
            lines.append(line if info is not None else line[4:])
        elif line.startswith("#"):
            section = line.lstrip("# ")
    return parsed


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the arguments of each command of PROGRAMS in a block of commands, or of commands and output."""
    if block.info and block.info[0] not in ("sh", "text"):
        return
    for line in block.lines():
        if not _COMMAND.match(line) or _OPEN_QUOTE.match(line.partition(" #")[0]):
            continue
        lexer = shlex.shlex(_UNTYPED.sub("", line), posix=True, punctuation_chars="|;&")
        lexer.wordchars += "@%,:[]{}()+!"
        arguments: list[str] = []
        for word in [*lexer, ";"]:
            if word in _SEPARATORS:
                if arguments and Path(arguments[0]).name in PROGRAMS:
                    yield [Path(arguments[0]).name, *arguments[1:]]
                arguments = []
            elif arguments or not _ASSIGNMENT.fullmatch(word):
                arguments.append(word)


def typed_script(page: Path, *sections: str, on: str = "") -> str:
    """Return a shell script that writes a tutorial's files and types its commands, those of `sections` or all.

    With `on`, only the blocks `sh ON`, typed on another machine. Each command is printed before it runs; the first that
    fails ends the script.
    """
    parts = ["set -eo pipefail"]
    for block in blocks(page):
        if sections and block.section not in sections:
            continue
        if block.is_typed and block.info[1:] == ((on,) if on else ()):
            parts += (f"printf '%s\\n' {shlex.quote(f'$ {line}')}\n{line}" for line in block.lines() if line.strip())
        elif not on and len(block.info) == 2 and block.info[0] in ("python", "yaml"):
            path = block.info[1].replace("~", "$HOME", 1)
            parts.append(f"cat > \"{path}\" << '{_END}'\n{block.text}\n{_END}")
    return "\n".join(parts) + "\n"
