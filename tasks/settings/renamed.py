"""Renamed settings: an old name is still accepted, with one line on standard error that names the new one.

A layer with old names becomes one with new names before the layers are merged, so that a later source still wins over
an earlier one, whichever name each of them uses. Settings recorded in an older run folder are translated silently.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any

from tasks.errors import UsageError
from tasks.settings.schema import field, value_type
from tasks.settings.sources import Keys, SettingsLayer, SettingsLayers, found_text, set_value

RENAMED: dict[Keys, Keys] = {
    ("cluster", "fss", "capacity"): ("cluster", "volume", "capacity"),
    ("cluster", "fss", "volume_handle"): ("cluster", "volume", "handle"),
    ("cluster", "ready_within_sec"): ("cluster", "ready_timeout_sec"),
    ("cluster", "registry_user"): ("registry", "user"),
    ("fleet", "give_up_after_sec"): ("fleet", "reconnect_timeout_sec"),
    ("fleet", "log_in_within_sec"): ("fleet", "login_timeout_sec"),
    ("train", "answer_tokens"): ("train", "sample_max_new_tokens"),
    ("train", "gradients"): ("train", "gradient_dtype"),
    ("train", "labels"): ("train", "label_mask"),
    ("train", "patience"): ("train", "early_stopping_patience"),
    ("train", "prompts"): ("train", "sample_prompts"),
    ("train", "validation"): ("train", "validation_fraction"),
    ("train", "wait"): ("train", "replacement_timeout_sec"),
    ("train", "weights"): ("train", "data_weights"),
    ("tune", "keep_percent"): ("tune", "length_percentile"),
}
RENAMED_VALUES: dict[Keys, dict[str, str]] = {
    ("tune", "recipes"): {"fast-eight": "fast-int8", "fast-eight-backward": "fast-int8-backward"},
}


def translate_layers(layers: SettingsLayers) -> SettingsLayers:
    """Replace old names in every layer, and print a line for each. Raises UsageError if a layer has both names."""
    return dataclasses.replace(layers, weakest_first=[_translate_layer(layer) for layer in layers.weakest_first])


def translate_recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's plan under today's names."""
    translated: dict[str, Any] = _copy(settings)
    for old, new in RENAMED.items():
        value = _pop(translated, old)
        if value is not _MISSING:
            target = _parent(translated, new)
            if isinstance(target, dict):
                target.setdefault(new[-1], value)
    return translated


_MISSING = object()


def _copy(data: Any) -> Any:
    return {name: _copy(value) for name, value in data.items()} if isinstance(data, Mapping) else data


def _pop(data: dict[str, Any], keys: Keys) -> Any:
    """Remove a value, and its subsection if that is empty now; _MISSING if it is not there."""
    section: Any = data
    for key in keys[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    if not isinstance(section, dict) or keys[-1] not in section:
        return _MISSING
    value = section.pop(keys[-1])
    if not section and len(keys) > 2:
        _pop(data, keys[:-1])
    return value


def _parent(data: dict[str, Any], keys: Keys) -> Any:
    """Return the section of a key, which is created if it is missing; something else if a value is in its place."""
    section: Any = data
    for key in keys[:-1]:
        if not isinstance(section, dict):
            return None
        section = section.setdefault(key, {})
    return section


def _translate_layer(layer: SettingsLayer) -> SettingsLayer:
    for old, new in RENAMED.items():
        if layer.has(old):
            layer = _rename(layer, old, new)
    for keys, new_values in RENAMED_VALUES.items():
        if layer.has(keys):
            layer = _rename_values(layer, keys, new_values)
    return layer


def _rename(layer: SettingsLayer, old: Keys, new: Keys) -> SettingsLayer:
    value, change = layer.get(old), f"{layer.where(old)}: {'.'.join(old)} is now {'.'.join(new)}"
    data = _copy(layer.data)
    _pop(data, old)
    _, is_nullable = value_type(field(new).annotation)
    if value in (None, "") and is_nullable:
        return dataclasses.replace(layer, data=data)
    if layer.has(new):
        values = f"{found_text(value)} and {found_text(layer.get(new))}"
        raise UsageError(f"{change}, and both are set, to {values}", remedy="remove the old one")
    if not isinstance(_parent(data, new), dict):
        return layer  # a section that is not a section: the check of the layer names it
    _print_once(f"{change}; rename it there")
    set_value(data, new, value)
    return dataclasses.replace(layer, data=data, old_names={**layer.old_names, new: old})


def _rename_values(layer: SettingsLayer, keys: Keys, new_values: Mapping[str, str]) -> SettingsLayer:
    values = layer.get(keys)
    old_values = [value for value in values if str(value) in new_values] if isinstance(values, list) else []
    if not old_values:
        return layer
    pairs = ", ".join(f"{value} is now {new_values[value]}" for value in old_values)
    _print_once(f"{layer.where(keys)}: {'.'.join(keys)}: {pairs}; rename it there")
    data = _copy(layer.data)
    set_value(data, keys, [new_values.get(str(value), value) for value in values])
    return dataclasses.replace(layer, data=data)


@functools.cache
def _print_once(line: str) -> None:
    # One command loads its settings several times.
    print(line, file=sys.stderr)
