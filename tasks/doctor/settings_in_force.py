"""`inv settings`: every setting in force, its value and its source; with a name, all that is known of one."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import Any

from invoke.context import Context
from rich.text import Text

from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console, ruled_table
from tasks.errors import UsageError, escape_controls
from tasks.settings.layers import Settings, load_with_places, nearest
from tasks.settings.sections import SETTINGS
from tasks.settings.sources import env_name, found_text


def show_settings(context: Context, name: str | None, *, changed: bool) -> CommandResult:
    """Show the settings below `name`, a section or one setting, by default all. Raises UsageError."""
    settings, places = load_with_places(context)
    chosen = () if name is None else tuple(name.split("."))
    values, defaults = settings.public(), Settings(root=settings.root).public()
    rows = []
    for keys in (keys for keys in SETTINGS if keys[: len(chosen)] == chosen):
        value, default = (reduce(lambda section, key: section[key], keys, layer) for layer in (values, defaults))
        row = {"name": ".".join(keys), "value": value, "default": default, "is_default": value == default}
        row |= {"source": places.get(keys, "default"), "variable": env_name(keys)}
        rows.append(row | {"expected": SETTINGS[keys].values, "meaning": SETTINGS[keys].comment})
    if not rows:
        near = nearest(chosen)
        advice = f"did you mean {near}?" if near else "`inv settings` lists them all"
        raise UsageError(f"settings: {name}: unknown setting", remedy=advice)
    rows = [row for row in rows if not (changed and row["is_default"])]
    return CommandResult(data={"settings": rows}, show=partial(_print, rows, is_one=len(chosen) > 1 and len(rows) == 1))


def _print(rows: Sequence[Mapping[str, Any]], *, is_one: bool) -> None:
    if is_one:
        for label, value in rows[0].items():
            print(f"{label:<12}{_shown(value)}")
        return
    table = ruled_table("setting", "value", "set in")
    for _, section in groupby(rows, key=lambda row: row["name"].partition(".")[0]):
        table.add_section()
        for row in section:
            style = "" if row["is_default"] else "bold"
            table.add_row(Text(row["name"], style=style), Text(_shown(row["value"]), style=style), Text(row["source"]))
    console(soft_wrap=False).print(table if rows else "every setting has its default")


def _shown(value: Any) -> str:
    """Format a value as in a settings file."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_shown(name)}: {_shown(item)}' for name, item in value.items())}}}"
    return escape_controls(value) if isinstance(value, str) else found_text(value)
