"""Write settings to ~/.invoke.yaml, with all other settings and comments as they were; the old file is backed up."""

import copy
import datetime
import io
import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from bench.records.atomic_files import open_atomic
from tasks.errors import UsageError, file_errors
from tasks.settings.sections import SETTINGS
from tasks.settings.sources import Keys, display_path, find, parse, read_text

Values = Mapping[str, Any]


def plan_user_settings(values: Values) -> tuple[Path, str, str]:
    """Return the file, its text and its text with these settings. Raises UsageError."""
    path = _user_config_path()
    text = read_text(path) if path.exists() else ""
    return path, text, merge_settings(text, values, path)


def write_user_settings(values: Values) -> list[str]:
    """Write the settings and return the lines to print. Raises UsageError and then changes nothing."""
    path, text, changed = plan_user_settings(values)
    if changed == text:
        has_file = f"{display_path(path)} already has these settings"
        return [has_file if path.exists() else f"every setting keeps its default: {display_path(path)} is not needed"]
    lines = []
    with file_errors(f"{display_path(path)}: cannot be written"):
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        if path.exists():
            lines.append(f"saved the old file as {display_path(back_up(path, mode=mode))}")
        write_private(path, changed.encode(), mode=mode)
    return [*lines, f"wrote {display_path(path)}"]


def _user_config_path() -> Path:
    """Return the user's settings file, by default ~/.invoke.yaml. Raises UsageError for a JSON file."""
    path = next(iter(find("~/.")), Path.home() / ".invoke.yaml")
    if path.suffix == ".json":
        raise UsageError(f"{display_path(path)}: only YAML can be edited", remedy="add the settings above by hand")
    return Path(os.path.realpath(path))


def merge_settings(text: str, values: Values, path: Path) -> str:
    """Set the values in the text of a settings file. Raises UsageError, which names `path`.

    A setting that is new there gets its comment. The result is parsed again: unless it has exactly the old and the new
    settings, it is refused.
    """
    name = display_path(path)
    old = parse(text, path)[0]
    expected = copy.deepcopy(old)
    _update(expected, values, name)
    if expected == old:
        return text
    editor, output = YAML(), io.StringIO()
    editor.preserve_quotes, editor.width = True, 10_000
    key, item = re.search(r"^( +)\w", text, re.MULTILINE), re.search(r"^( *)\w.*\n( *)- ", text, re.MULTILINE)
    offset = max(0, len(item[2]) - len(item[1])) if item else 0
    editor.indent(mapping=len(key[1]) if key else 2, sequence=offset + 2, offset=offset)
    try:
        document = editor.load(text) or CommentedMap()
        _update(document, values, name)
        editor.dump(document, output)
        changed = output.getvalue()
        is_correct = yaml.safe_load(changed) == expected
    except (YAMLError, yaml.YAMLError, ValueError, TypeError, AttributeError):
        is_correct = False
    if not is_correct:
        raise UsageError(f"{name}: its layout cannot be edited safely", remedy="add the settings by hand")
    return changed


def _update(section: MutableMapping[str, Any], values: Values, name: str, parents: Keys = ()) -> None:
    """Set the values in a section and those below it. Raises UsageError where the old ones have another form."""
    for key, value in values.items():
        keys = (*parents, key)
        old, path, is_new = section.get(key), ".".join(keys), key not in section
        if isinstance(value, Mapping):
            if old is None:
                old = section[key] = CommentedMap()
            elif not isinstance(old, MutableMapping):
                raise UsageError(f"{name}: {path}: expected a section", remedy="nothing was written")
            _update(old, value, name, keys)
        elif isinstance(old, MutableMapping | list):
            raise UsageError(f"{name}: {path}: expected a value", remedy="nothing was written")
        elif old != value:
            section[key] = copy.copy(value)  # one date in several places would be written as an alias
            if is_new and keys in SETTINGS and isinstance(section, CommentedMap) and not section.fa.flow_style():
                section.yaml_add_eol_comment(SETTINGS[keys].comment, key)


def write_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` atomically; its permissions never exceed `mode`. Follows a symbolic link. Raises OSError."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_atomic(target, mode=mode) as file:  # 0600 until it is complete
        file.write(content)


def back_up(path: Path, *, mode: int = 0o600) -> Path:
    """Copy the file to a name with a timestamp, in the same folder. Raises OSError."""
    backup = path.with_name(f"{path.name}.{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}")
    write_private(backup, path.read_bytes(), mode=mode)
    return backup
