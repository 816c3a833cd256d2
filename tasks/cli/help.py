"""Help texts: the list of commands below the headings of their sections, and the help of one command."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from invoke.parser.context import ParserContext

from tasks.cli.flags import Command, Section

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


def explain_command(command: Command, context: ParserContext) -> str:
    """Return usage, description, arguments, flags and examples of a command; `context` is its parser's.

    An argument is accepted as a flag too, which is not shown.
    """
    required = [f" {str(argument.name).upper()}" for argument in context.positional_args if not argument.optional]
    optional = [f" [{str(argument.name).upper()}]" for argument in context.positional_args if argument.optional]
    usage = f"Usage: inv {command.shown_name}{''.join((*required, *optional))} [--flags] [TASK ...]"
    description = "\n".join(textwrap.fill(line, WIDTH) for line in (command.__doc__ or "").splitlines())
    arguments = {context.help_for(f"--{each.name}"): str(each.name).upper() for each in context.positional_args}
    columns: dict[str, list[tuple[str, str | None]]] = {
        "Arguments": [(name, text) for (_, text), name in arguments.items()],
        "Flags": [flag for flag in context.help_tuples() if flag not in arguments],
    }
    parts = [usage, description, *(f"{title}:\n{_two_columns(rows)}" for title, rows in columns.items() if rows)]
    examples = "\n".join(f"{_INDENT}{example}" for example in command.examples)
    return "\n\n".join([*parts, f"Examples:\n{examples}\n"])


def _two_columns(pairs: Sequence[tuple[str, str | None]]) -> str:
    width = max(len(name) for name, _ in pairs) + _GAP
    lines = []
    for name, text in pairs:
        wrapped = textwrap.wrap(
            text or "", WIDTH - len(_INDENT) - width, break_long_words=False, break_on_hyphens=False
        )
        first, *rest = wrapped or [""]
        lines += [f"{_INDENT}{name:<{width}}{first}", *(f"{_INDENT}{'':<{width}}{line}" for line in rest)]
    return "\n".join(line.rstrip() for line in lines)
