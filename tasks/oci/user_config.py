"""Write settings to ~/.invoke.yaml, preserving everything else including comments; the old file is backed up.

Values are inserted into the text. The result is parsed before it is written: unless it has exactly the old and the new
settings, nothing is written.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.records.atomic_files import read_regular
from tasks.errors import UsageError, file_errors
from tasks.oci.private_files import back_up, write_private
from tasks.settings.sources import display_path

_MAX_BYTES = 1 << 17
Values = Mapping[str, Any]


def write_user_settings(values: Values) -> list[str]:
    """Write the settings and return the lines to print. Raises UsageError and then changes nothing."""
    path = _user_config_path()
    text = _read(path)
    changed = merge_settings(text, values, display_path(path))
    if changed == text:
        return [f"{display_path(path)} already has these settings"]
    lines = []
    with file_errors(f"{display_path(path)}: cannot be written"):
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        if path.exists():
            lines.append(f"saved the old file as {display_path(back_up(path, mode=mode))}")
        write_private(path, changed.encode(), mode=mode)
    return [*lines, f"wrote {display_path(path)}"]


def _user_config_path() -> Path:
    """Return the file that Invoke reads: the first existing one, or ~/.invoke.yaml."""
    existing = [
        path for suffix in ("yaml", "yml", "json", "py") if (path := Path.home() / f".invoke.{suffix}").exists()
    ]
    path = existing[0] if existing else Path.home() / ".invoke.yaml"
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{display_path(path)}: only YAML can be edited", remedy="add the settings above by hand")
    return Path(os.path.realpath(path))


def _read(path: Path) -> str:
    try:
        return read_regular(path, max_bytes=_MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{display_path(path)}: cannot be read: {reason}", remedy="nothing was written") from error


def merge_settings(text: str, values: Values, name: str) -> str:
    """Insert the values into a settings file's text; `name` is the file in messages. Raises UsageError."""
    old = _parse(text, name)
    expected = _merge(old, values)
    changed = text
    try:
        for keys, value in _leaves(values):
            changed = _set_value(changed, keys, value, name)
        is_correct = yaml.safe_load(changed) == expected
    except yaml.YAMLError:
        is_correct = False
    if not is_correct:
        raise UsageError(f"{name}: its layout cannot be edited safely", remedy="add the settings by hand")
    return changed


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{name}{line}: invalid YAML", remedy="fix it; nothing was written") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(
            f"{name}: expected sections such as `fleet:`, found a {type(data).__name__}", remedy="nothing was written"
        )
    return data


def _merge(old: Values, new: Values) -> dict[str, Any]:
    merged = copy.deepcopy(dict(old))
    for key, value in new.items():
        section = merged.get(key)
        merged[key] = (
            _merge(section if isinstance(section, dict) else {}, value) if isinstance(value, Mapping) else value
        )
    return merged


def _leaves(values: Values, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _set_value(text: str, keys: tuple[str, ...], value: Any, name: str) -> str:
    """Replace one value in the text, or add it as a new line of its section."""
    node = yaml.compose(text, yaml.SafeLoader)
    for depth, key in enumerate(keys):
        if node is None or not isinstance(node, yaml.MappingNode) or not node.value:
            return _fill_empty(text, node, keys[:depth], keys[depth:], value, name)
        pair = next(
            (pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode) and pair[0].value == key), None
        )
        if pair is None:
            return _add_key(text, node, keys[depth:], value, is_section=depth == 0)
        node = pair[1]
    assert node is not None  # noqa: S101 - for the type checker: `keys` has one or more
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(
            f"{name}:{node.start_mark.line + 1}: {'.'.join(keys)}: expected a value", remedy="nothing was written"
        )
    start, end = node.start_mark.index, node.end_mark.index
    space = "" if start == 0 or text[start - 1] in " \n" else " "  # an empty value ends at its colon
    return f"{text[:start]}{space}{_format_scalar(value)}{text[end:]}"


def _add_key(text: str, node: yaml.MappingNode, keys: tuple[str, ...], value: Any, *, is_section: bool) -> str:
    if node.flow_style:
        end = node.end_mark.index - 1
        return f"{text[:end].rstrip()}, {_format_flow(keys, value)} {text[end:]}"
    first = node.value[0][0].start_mark
    end = len(text) if is_section else _line_end(text, node.value[-1][1].end_mark.index)
    break_before = "" if end == 0 or text[end - 1] == "\n" else "\n"
    return f"{text[:end]}{break_before}{_format_block(keys, value, first.column)}{text[end:]}"


def _fill_empty(
    text: str, node: yaml.Node | None, parents: tuple[str, ...], keys: tuple[str, ...], value: Any, name: str
) -> str:
    if not parents and node is not None:
        start, end = node.start_mark.index, node.end_mark.index  # the document is {}
        return f"{text[:start]}{_format_block(keys, value, 0).rstrip()}{text[end:]}"
    if not parents:
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{_format_block(keys, value, 0)}"
    assert node is not None  # noqa: S101 - for the type checker: a key always has a node
    is_empty = isinstance(node, yaml.MappingNode) or (
        isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")
    )
    if not is_empty:
        raise UsageError(
            f"{name}:{node.start_mark.line + 1}: {'.'.join(parents)}: expected a section", remedy="nothing was written"
        )
    start, end = node.start_mark.index, node.end_mark.index
    return f"{text[:start]}{'' if text[start - 1] == ' ' else ' '}{{ {_format_flow(keys, value)} }}{text[end:]}"


def _line_end(text: str, index: int) -> int:
    """Return the end of the last value's line; a block's end mark may be after blank lines and comments."""
    while index > 0 and text[:index].rsplit("\n", 1)[-1].strip() == "":
        index = text.rfind("\n", 0, index)
        if index < 0:
            return 0
    while index > 0 and text[text.rfind("\n", 0, index) + 1 : index].lstrip().startswith("#"):
        index = max(0, text.rfind("\n", 0, index))
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _format_block(keys: tuple[str, ...], value: Any, column: int) -> str:
    lines = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(keys)]
    return "\n".join(lines) + f" {_format_scalar(value)}\n"


def _format_flow(keys: tuple[str, ...], value: Any) -> str:
    braces = "".join(f"{key}: {{ " for key in keys[:-1])
    return f"{braces}{keys[-1]}: {_format_scalar(value)}{' }' * (len(keys) - 1)}"


def _format_scalar(value: Any) -> str:
    """Format a value as one line of YAML, valid in block and flow style; ambiguous text is quoted."""
    return yaml.safe_dump([value], default_flow_style=True, width=10_000, allow_unicode=True).strip()[1:-1]
