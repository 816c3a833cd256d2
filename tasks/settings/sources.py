"""Sources of the settings: files, whose values have a line for messages.

Invoke's own reader loses file and line, ignores a missing -f file, uses the last of two equal keys, and ends in a
traceback if a file cannot be parsed. Here each of these is an error of one line, and Invoke reads nothing.

Not covered: validation of keys and values; see `tasks.settings.layers`.
"""

import functools
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from invoke.config import Config

from bench.records.atomic_files import read_regular
from tasks.errors import UsageError

ENV_PREFIX, _SUFFIXES = "INVOKE_", ("yaml", "yml", "json")
Keys = tuple[str, ...]
_MAX_FILE_BYTES, _MAX_NESTING = 1 << 17, 20  # this project's own file has a tenth of each


@dataclass(frozen=True)
class Entry:
    """A value of a setting, and its source for a message: `invoke.yaml:14`, or a variable or a flag, which has text."""

    value: Any
    source: str
    is_text: bool = False


class ProjectConfig(Config):
    """Invoke's config, which reads no file and no variable: `tasks.settings.layers` does.

    `typed_settings` has the flag and the text of each setting that a command's flags replace.
    """

    typed_settings: Mapping[Keys, tuple[str, str]] = MappingProxyType({})

    def _load_file(self, *_: Any, **__: Any) -> None: ...

    def load_shell_env(self) -> None: ...


def root_folder(config: Config) -> Path:
    """Return the folder of the code."""
    prefix = config._project_prefix
    return Path(prefix).absolute() if prefix is not None else Path(__file__).resolve().parents[2]


def files(config: Config) -> list[tuple[Path, bool]]:
    """Return the settings files but -f, the weakest first, with True for a shared one. Raises UsageError."""
    root = root_folder(config)
    own = find("./") if is_installed(root) else []  # without a checkout: the file of the working directory
    project = find(f"{root}/")
    if not project:
        raise UsageError(
            f"{display_path(root / 'invoke.yaml')}: no such file", remedy="`git checkout invoke.yaml` restores it"
        )
    # In Invoke, the project's file overrides the user's. Ours has every setting with its default, so a user's file
    # would have no effect.
    return [
        *((path, True) for path in find(config._system_prefix)),
        *((path.absolute(), False) for path in (*project, *own)),
        *((path, True) for path in find(config._user_prefix)),
    ]


def find(prefix: str) -> list[Path]:
    """Return the settings file with this prefix, if there is one; of several, the first in Invoke's order."""
    paths = [_expand_user(f"{prefix}invoke.{suffix}") for suffix in _SUFFIXES]
    return [path for path in paths if path.exists()][:1]


def is_installed(root: Path) -> bool:
    """Check whether the code's folder is that of an installed wheel (setup.py), and not a checkout."""
    return root.with_suffix(".pth").is_file()


def env_name(keys: Keys) -> str:
    return ENV_PREFIX + "_".join(keys).upper()


def _expand_user(path: str | Path) -> Path:
    """Expand ~ like `remote.hosts.local.expand_user`, whose module `inv --list` does not need."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def display_path(path: Path) -> str:
    """Shorten a path: relative to the working directory, or with ~ for the home directory."""
    for base, prefix in ((Path.cwd(), ""), (_expand_user("~"), "~/")):
        if path.is_absolute() and path.is_relative_to(base):
            return prefix + str(path.relative_to(base))
    return str(path)


def read_file(path: Path) -> tuple[dict[Any, Any], Callable[[Keys], str]]:
    """Read a settings file, YAML or JSON: its sections, which are not to be changed, and the source of each key.

    Raises UsageError.
    """
    name = display_path(path)
    if path.suffix.removeprefix(".") not in _SUFFIXES:
        raise UsageError(f"{name}: expected a name that ends in .yaml, .yml or .json")
    try:
        text = read_regular(path, max_bytes=_MAX_FILE_BYTES).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"{name}: no such file, but -f (or INVOKE_RUNTIME_CONFIG) names it") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: expected UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror}") from error
    data, node = _parse_yaml(text, name)
    if data is not None and not isinstance(data, dict):
        raise UsageError(f"{name}:1: expected sections such as `fleet:`, found {found_text(data)}")
    return data or {}, lambda keys: f"{name}{_line_of(node, keys)}"


def parse_text(text: str) -> Any:
    """Return the value of a variable's or a flag's text, YAML or JSON, by the rules of a file. Raises YAMLError."""
    _check_structure(text)
    return _Loader(text).get_single_data()


@functools.lru_cache(maxsize=8)  # a command loads its settings several times
def _parse_yaml(text: str, name: str) -> tuple[Any, yaml.Node | None]:
    try:
        _check_structure(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(node), node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        reason = (error.problem or "not usable").replace("but found another document", "a second document")
        reason = reason.replace("found character that", "a tab, or another character that")
        raise UsageError(f"{name}{line}: not YAML: {reason}") from error
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{name}:{line_number}: not YAML: a forbidden character") from error


def _check_structure(text: str) -> None:
    """Raise MarkedYAMLError for an alias, which may expand without end, and for nesting that would overflow a stack."""
    events: Any = yaml.parse(text, _Loader)
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _MAX_NESTING:
            problem = "nested too deeply" if depth > _MAX_NESTING else "an alias"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FastLoader):  # type: ignore[misc]
    """PyYAML's loader that refuses equal keys in a section, and names the line of each unusable value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in lines:
                    problem = f"{clip(key.value)} is given twice, first on line {lines[key.value]}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        # For `2025-13-45` and `!!int x` PyYAML raises ValueError, IndexError and others, without a line number.
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
            problem = f"{clip(str(node.value))} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


def _line_of(node: yaml.Node | None, keys: Keys) -> str:
    """Return `:LINE` that sets a key, or that of the last section above it; an empty text without one."""
    line = ""
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        matches = [(k, v) for k, v in pairs if isinstance(k, yaml.ScalarNode) and k.value == key]
        if not matches:
            break  # for a key such as `yes`, which YAML reads as true, use the line of the section
        line, node = f":{matches[-1][0].start_mark.line + 1}", matches[-1][1]
    return line


def clip(text: str, length: int = 60) -> str:
    """Cut `text` to `length` characters, with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def found_text(value: object) -> str:
    """Format a value as in a settings file, short enough for one line."""
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, set):
        return "a set"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("inf", ".inf").replace("nan", ".nan")
    try:
        return clip(json.dumps(value, ensure_ascii=False, default=str))
    except ValueError:  # more digits than Python prints
        return "a number too long to show"
