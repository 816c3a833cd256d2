"""Help texts: the list of commands below the headings of their sections, and the help of one command."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from tasks.cli.flags import Command, Flag, Section

WIDTH = 80
_GAP, _INDENT = 2, "  "


def list_commands(commands: Iterable[Command]) -> str:
    """Return one line for each command, below its section."""
    ordered = sorted(commands, key=lambda command: (list(Section).index(command.section), command.order))
    width = max(len(command.shown_name) for command in ordered)
    parts = []
    for section, members in groupby(ordered, key=lambda command: command.section):
        lines = [f"{_INDENT}{each.shown_name:<{width + _GAP}}{each.summary}" for each in members]
        parts.append("\n".join([section.value, *lines]))
    return "\n\n".join(parts)


def explain_command(command: Command) -> str:
    """Return usage, description, arguments, flags and examples of a command.

    An argument is accepted as a flag too, which is not shown.
    """
    arguments = [(name.upper(), flag) for name, flag in command.typed_flags.items() if flag.is_positional]
    shown = (f" [{name}]" if flag.is_value_optional else f" {name}" for name, flag in arguments)
    usage = f"Usage: inv {command.shown_name}{''.join(shown)} [--flags] [TASK ...]"
    description = "\n".join(textwrap.fill(line, WIDTH) for line in (command.__doc__ or "").splitlines())
    flags = [(_typed(name, flag), flag) for name, flag in command.typed_flags.items() if not flag.is_positional]
    columns = {"Arguments": arguments, "Flags": sorted(flags, key=lambda row: row[0])}
    parts = [usage, description, *(f"{title}:\n{_two_columns(rows)}" for title, rows in columns.items() if rows)]
    if command.examples:
        parts.append("\n".join(["Examples:", *(f"{_INDENT}{example}" for example in command.examples)]))
    return "\n\n".join(parts) + "\n"


def _typed(name: str, flag: Flag) -> str:
    value = (
        "" if flag.kind is bool else f"={flag.value or ('N' if flag.kind is int else name.rpartition('-')[2].upper())}"
    )
    return f"--{name}[{value}]" if flag.is_value_optional else f"--{name}{value}"


def _two_columns(pairs: Sequence[tuple[str, Flag]]) -> str:
    width = max(len(name) for name, _ in pairs) + _GAP
    lines = []
    for name, flag in pairs:
        wrapped = textwrap.wrap(
            flag.full_help, WIDTH - len(_INDENT) - width, break_long_words=False, break_on_hyphens=False
        )
        first, *rest = wrapped or [""]
        lines += [f"{_INDENT}{name:<{width}}{first}", *(f"{_INDENT}{'':<{width}}{line}" for line in rest)]
    return "\n".join(line.rstrip() for line in lines)
