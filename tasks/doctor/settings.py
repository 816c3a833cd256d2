"""`inv settings`: every setting in force, its value and its source; with a name, all that is known of one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from invoke.context import Context
from rich.table import Table
from rich.text import Text

from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console, ruled_table
from tasks.errors import UsageError, escape_controls
from tasks.settings.load import Settings, load_layers, nearest
from tasks.settings.schema import SETTINGS, Sections
from tasks.settings.sources import Keys, SettingsLayers, env_name, found_text


def show_settings(context: Context, name: str | None, *, changed: bool) -> CommandResult:
    """Show the settings below `name`, a section or one setting, by default all. Raises UsageError."""
    settings, layers = load_layers(context)
    chosen = _choose(name)
    if changed:
        chosen = [keys for keys in chosen if _value(settings, keys) != _default(keys)]
    is_one = name is not None and chosen == [tuple(name.split("."))]
    show = (
        partial(_print_setting, settings, layers, chosen[0])
        if is_one
        else partial(_print_table, settings, layers, chosen)
    )
    return CommandResult(data={"settings": [_describe(settings, layers, keys) for keys in chosen]}, show=show)


def _print_table(settings: Settings, layers: SettingsLayers, chosen: Sequence[Keys]) -> None:
    table = ruled_table("setting", "value", "set in")
    for before, keys in zip([(), *chosen], chosen, strict=False):
        if before and before[0] != keys[0]:
            table.add_section()
        value = _shown(_value(settings, keys))
        style = "bold" if _value(settings, keys) != _default(keys) else ""
        table.add_row(Text(".".join(keys), style=style), Text(value, style=style), Text(_source(layers, keys)))
    console(soft_wrap=False).print(table if chosen else "every setting has its default")


def _choose(name: str | None) -> list[Keys]:
    if name is None:
        return list(SETTINGS)
    keys = tuple(name.split("."))
    chosen = [leaf for leaf in SETTINGS if leaf[: len(keys)] == keys]
    if not chosen:
        near = nearest(keys)
        advice = f"did you mean {near}?" if near else "`inv settings` lists them all"
        raise UsageError(f"settings: {name}: unknown setting", remedy=advice)
    return chosen


def _value(settings: Sections, keys: Keys) -> Any:
    value: Any = settings
    for key in keys:
        value = getattr(value, key)
    return value


def _default(keys: Keys) -> Any:
    return _value(Sections(), keys)


def _shown(value: Any) -> str:
    """Format a value as in a settings file."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return escape_controls(value) if isinstance(value, str) else found_text(value)


def _source(layers: SettingsLayers, keys: Keys) -> str:
    strongest = layers.strongest(keys)
    return "default" if strongest is None else strongest.where(keys)


def _describe(settings: Settings, layers: SettingsLayers, keys: Keys) -> dict[str, Any]:
    plain = settings.public()
    for key in keys:
        plain = plain[key]
    return {
        "name": ".".join(keys),
        "value": plain,
        "is_default": _value(settings, keys) == _default(keys),
        "source": _source(layers, keys),
        "variable": env_name(keys),
        "expected": SETTINGS[keys].values,
        "meaning": SETTINGS[keys].comment,
    }


def _print_setting(settings: Settings, layers: SettingsLayers, keys: Keys) -> None:
    name, value = ".".join(keys), _shown(_value(settings, keys))
    rows = [("value", value), *_layer_rows(layers, keys), ("expected", SETTINGS[keys].values)]
    rows += [("default", _shown(_default(keys))), ("meaning", SETTINGS[keys].comment)]
    rows += [("to change", f"{name} in ~/.invoke.yaml, or {env_name(keys)} in the environment")]
    out, lines = console(soft_wrap=False), Table.grid(padding=(0, 1))
    for label, text in rows:
        if text:
            lines.add_row(f"  {label}:", Text(text, overflow="fold"))
    out.print(Text(name, style="bold"), lines)


def _layer_rows(layers: SettingsLayers, keys: Keys) -> Sequence[tuple[str, str]]:
    """List where the value comes from, and each place whose value it overrides, the strongest first."""
    setting = [layer for layer in reversed(layers.weakest_first) if layer.has(keys)]
    if not setting:
        return []
    first, *others = setting
    overridden = [("overrides", f"{_shown(layer.get(keys))}, {layer.where(keys)}") for layer in others]
    return [("set in", first.where(keys)), *overridden]
