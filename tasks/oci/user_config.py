"""Settings into ~/.invoke.yaml. Everything else in the file stays as it is, comments too; a copy of it is kept.

The new lines are put in by their place in the text, and the result is read again before it is written: it must hold the
old settings, the new ones and nothing else, or nothing is written.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.records.atomic_files import read_regular
from tasks.errors import UsageError, file_errors
from tasks.oci.private_files import keep_old, write_private
from tasks.settings.sources import shown

_MOST_BYTES = 1 << 17
Values = Mapping[str, Any]


def write_user_settings(wanted: Values) -> list[str]:
    """Write them; the lines to print. Raises UsageError, having changed nothing."""
    path = _user_file()
    text = _read(path)
    changed = with_settings(text, wanted, shown(path))
    if changed == text:
        return [f"{shown(path)} has these settings already"]
    lines = []
    with file_errors(f"{shown(path)}: cannot be written"):
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        if path.exists():
            lines.append(f"kept the old one as {shown(keep_old(path, mode=mode))}")
        write_private(path, changed.encode(), mode=mode)
    return [*lines, f"wrote {shown(path)}"]


def _user_file() -> Path:
    """The file that Invoke reads: the first of these that is there."""
    there = [path for suffix in ("yaml", "yml", "json", "py") if (path := Path.home() / f".invoke.{suffix}").exists()]
    path = there[0] if there else Path.home() / ".invoke.yaml"
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{shown(path)}: only YAML can be added to; put the settings above into it by hand")
    return Path(os.path.realpath(path))


def _read(path: Path) -> str:
    try:
        return read_regular(path, most_bytes=_MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{shown(path)}: cannot be read: {why}; nothing was written") from None


def with_settings(text: str, wanted: Values, name: str) -> str:
    """The text of a file of settings with these values in it. Raises UsageError, which calls the file `name`."""
    before = _parsed(text, name)
    expected = _merged(before, wanted)
    changed = text
    try:
        for keys, value in _leaves(wanted):
            changed = _with_one(changed, keys, value, name)
        right = yaml.safe_load(changed) == expected
    except yaml.YAMLError:
        right = False
    if not right:
        raise UsageError(f"{name}: its layout is one that cannot be added to safely; put the settings in by hand")
    return changed


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{name}{at}: not YAML that can be read; mend it; nothing was written") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(
            f"{name}: expected sections such as `fleet:`, found a {type(data).__name__}; nothing was written"
        )
    return data


def _merged(old: Values, new: Values) -> dict[str, Any]:
    made = copy.deepcopy(dict(old))
    for key, value in new.items():
        below = made.get(key)
        made[key] = _merged(below if isinstance(below, dict) else {}, value) if isinstance(value, Mapping) else value
    return made


def _leaves(values: Values, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _with_one(text: str, keys: tuple[str, ...], value: Any, name: str) -> str:
    """The text with one value: in place of the old one, or as a new line of its section."""
    node = yaml.compose(text, yaml.SafeLoader)
    for depth, key in enumerate(keys):
        if node is None or not isinstance(node, yaml.MappingNode) or not node.value:
            return _into_empty(text, node, keys[:depth], keys[depth:], value, name)
        pair = next(
            (pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode) and pair[0].value == key), None
        )
        if pair is None:
            return _added(text, node, keys[depth:], value, is_section=depth == 0)
        node = pair[1]
    assert node is not None  # noqa: S101 - for the type checker: `keys` has one or more
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(f"{name}:{node.start_mark.line + 1}: {'.'.join(keys)}: expected a value; nothing was written")
    start, end = node.start_mark.index, node.end_mark.index
    space = "" if start == 0 or text[start - 1] in " \n" else " "  # an empty value ends right behind its colon
    return f"{text[:start]}{space}{_scalar(value)}{text[end:]}"


def _added(text: str, node: yaml.MappingNode, keys: tuple[str, ...], value: Any, *, is_section: bool) -> str:
    if node.flow_style:
        end = node.end_mark.index - 1
        return f"{text[:end].rstrip()}, {_flow(keys, value)} {text[end:]}"
    first = node.value[0][0].start_mark
    end = len(text) if is_section else _end_of(text, node.value[-1][1].end_mark.index)
    break_before = "" if end == 0 or text[end - 1] == "\n" else "\n"
    return f"{text[:end]}{break_before}{_block(keys, value, first.column)}{text[end:]}"


def _into_empty(
    text: str, node: yaml.Node | None, above: tuple[str, ...], keys: tuple[str, ...], value: Any, name: str
) -> str:
    if not above and node is not None:
        start, end = node.start_mark.index, node.end_mark.index  # of {}
        return f"{text[:start]}{_block(keys, value, 0).rstrip()}{text[end:]}"
    if not above:
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{_block(keys, value, 0)}"
    assert node is not None  # noqa: S101 - for the type checker: a key always has a node
    is_empty = isinstance(node, yaml.MappingNode) or (
        isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")
    )
    if not is_empty:
        raise UsageError(
            f"{name}:{node.start_mark.line + 1}: {'.'.join(above)}: expected a section; nothing was written"
        )
    start, end = node.start_mark.index, node.end_mark.index
    return f"{text[:start]}{'' if text[start - 1] == ' ' else ' '}{{ {_flow(keys, value)} }}{text[end:]}"


def _end_of(text: str, index: int) -> int:
    """Where the line that holds the last value ends; a block's end mark may lie behind blank lines and comments."""
    while index > 0 and text[:index].rsplit("\n", 1)[-1].strip() == "":
        index = text.rfind("\n", 0, index)
        if index < 0:
            return 0
    while index > 0 and text[text.rfind("\n", 0, index) + 1 : index].lstrip().startswith("#"):
        index = max(0, text.rfind("\n", 0, index))
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _block(keys: tuple[str, ...], value: Any, column: int) -> str:
    lines = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(keys)]
    return "\n".join(lines) + f" {_scalar(value)}\n"


def _flow(keys: tuple[str, ...], value: Any) -> str:
    opening = "".join(f"{key}: {{ " for key in keys[:-1])
    return f"{opening}{keys[-1]}: {_scalar(value)}{' }' * (len(keys) - 1)}"


def _scalar(value: Any) -> str:
    """As YAML, on one line, fit for a block and for a list in braces: text that could be anything else has quotes."""
    return yaml.safe_dump([value], default_flow_style=True, width=10_000, allow_unicode=True).strip()[1:-1]
