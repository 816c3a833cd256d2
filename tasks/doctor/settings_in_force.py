"""`inv settings`: every setting in force, its value and its source; with a name, all that is known of one."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import Any

from invoke.context import Context
from rich.table import Table
from rich.text import Text

from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console, ruled_table
from tasks.errors import UsageError, escape_controls
from tasks.settings.layers import Settings, load_layers, nearest
from tasks.settings.sections import SETTINGS
from tasks.settings.sources import Keys, SettingsLayers, env_name, found_text


def show_settings(context: Context, name: str | None, *, changed: bool) -> CommandResult:
    """Show the settings below `name`, a section or one setting, by default all. Raises UsageError."""
    settings, layers = load_layers(context)
    values, defaults = settings.public(), Settings(root=settings.root).public()
    rows = [_describe(keys, values, defaults, layers) for keys in _choose(name)]
    rows = [row for row in rows if not (changed and row["is_default"])]
    is_one = [row["name"] for row in rows] == [name]
    show = partial(_print_setting, rows[0], layers) if is_one else partial(_print_table, rows)
    return CommandResult(data={"settings": rows}, show=show)


def _choose(name: str | None) -> list[Keys]:
    keys = () if name is None else tuple(name.split("."))
    chosen = [leaf for leaf in SETTINGS if leaf[: len(keys)] == keys]
    if not chosen:
        near = nearest(keys)
        advice = f"did you mean {near}?" if near else "`inv settings` lists them all"
        raise UsageError(f"settings: {name}: unknown setting", remedy=advice)
    return chosen


def _describe(
    keys: Keys, values: Mapping[str, Any], defaults: Mapping[str, Any], layers: SettingsLayers
) -> dict[str, Any]:
    value: Any = reduce(lambda section, key: section[key], keys, values)
    default: Any = reduce(lambda section, key: section[key], keys, defaults)
    strongest = layers.strongest(keys)
    return {
        "name": ".".join(keys),
        "value": value,
        "default": default,
        "is_default": value == default,
        "source": "default" if strongest is None else strongest.where(keys),
        "variable": env_name(keys),
        "expected": SETTINGS[keys].values,
        "meaning": SETTINGS[keys].comment,
    }


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    table = ruled_table("setting", "value", "set in")
    for _, section in groupby(rows, key=lambda row: row["name"].partition(".")[0]):
        table.add_section()
        for row in section:
            style = "" if row["is_default"] else "bold"
            table.add_row(Text(row["name"], style=style), Text(_shown(row["value"]), style=style), Text(row["source"]))
    console(soft_wrap=False).print(table if rows else "every setting has its default")


def _print_setting(row: Mapping[str, Any], layers: SettingsLayers) -> None:
    keys = tuple(row["name"].split("."))
    overridden = [layer for layer in reversed(layers.weakest_first) if layer.has(keys)][1:]
    lines = Table.grid(padding=(0, 1))
    for label, text in (
        ("value", _shown(row["value"])),
        ("set in", row["source"]),
        *(("overrides", f"{_shown(layer.get(keys))}, {layer.where(keys)}") for layer in overridden),
        ("expected", row["expected"]),
        ("default", _shown(row["default"])),
        ("meaning", row["meaning"]),
        ("to change", f"{row['name']} in ~/.invoke.yaml, or {row['variable']} in the environment"),
    ):
        lines.add_row(f"  {label}:", Text(text, overflow="fold"))
    console(soft_wrap=False).print(Text(row["name"], style="bold"), lines)


def _shown(value: Any) -> str:
    """Format a value as in a settings file."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_shown(name)}: {_shown(item)}' for name, item in value.items())}}}"
    return escape_controls(value) if isinstance(value, str) else found_text(value)
