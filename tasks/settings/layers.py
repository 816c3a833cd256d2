"""Loader of the settings: merges all sources and validates the result against `tasks.settings.sections`.

`load(context)` merges Invoke's layers (/etc/invoke.yaml, the project's invoke.yaml, ~/.invoke.yaml,
INVOKE_* variables, the -f file, flags of a command) and either returns frozen settings or raises UsageError with one
line:

    invoke.yaml:27: fleet.size: expected a whole number from 1 to 1024, found "four"

Not covered: the existence of folders and models, which is checked where they are used.
"""

import difflib
import math
import os
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from invoke.config import Config
from invoke.context import Context

from bench.records import schema
from bench.records.paths import IMAGE_FILE
from bench.records.validation import AUTO, FieldError
from remote.hosts.connectors import CONNECTORS
from remote.hosts.host_protocol import Connector
from remote.hosts.local import expand_user
from tasks.errors import UsageError
from tasks.settings import sources
from tasks.settings.sections import AUTO_WORKERS, SECTIONS, SETTINGS, Sections, local_workers
from tasks.settings.sources import Entry, Keys, found_text

_EXPONENT = re.compile(r"[-+]?[0-9]{1,20}(\.[0-9]{0,20})?[eE][-+]?[0-9]{1,4}")
_SIZE: Keys = ("fleet", "size")
_IMAGE_WORKSPACE, _SHARED_RESULTS = "/workspace", "/workspace/results"  # the same paths as in image and manifests


@dataclass(frozen=True, kw_only=True)
class Settings(Sections):
    """The effective settings. `root` is the folder of the code, with tasks.py, invoke.yaml, image and manifests."""

    root: Path

    @property
    def folder(self) -> Path:
        """Folder at which relative paths start: `root`, or the working directory if the package is installed."""
        return Path.cwd() if sources.is_installed(self.root) else self.root

    @property
    def connector(self) -> Connector:
        """Connector of the fleet's hosts."""
        return CONNECTORS[self.fleet.kind]

    @property
    def workspace(self) -> Path:
        """Working directory of `python -m bench` on a worker; relative paths start here."""
        if self.connector.is_cluster:
            return Path(_IMAGE_WORKSPACE, self.fleet.workspace or "")
        return self.resolve_path(self.fleet.workspace or "")

    @property
    def shared_results(self) -> str | None:
        """Persistent folder that all workers share, or None."""
        has_shared = self.fleet.pods.shared or self.cluster.volume.handle
        return self.pod_results if self.connector.is_cluster and has_shared else None

    @property
    def pod_results(self) -> str:
        """Folder for results in a pod: on the shared volume, or on the pod's own disk without one."""
        return self.fleet.pods.shared or _SHARED_RESULTS

    @property
    def results_folder(self) -> Path:
        """Folder of all runs on this machine."""
        return self.resolve_path(self.results.folder)

    @property
    def image_file(self) -> Path:
        """File that `inv push` writes: the pushed image's repository, digest and sizes."""
        return self.results_folder / IMAGE_FILE

    def resolve_path(self, path: str) -> Path:
        """Resolve a path from a setting: relative to `folder`, unless absolute or with a leading ~."""
        return self.folder / expand_user(path)

    def resolve_typed_path(self, path: str) -> Path:
        """Resolve a path from the command line: relative to the working directory, else to `folder`."""
        in_cwd, in_folder = Path.cwd() / path, self.folder / path
        return in_folder if in_folder.exists() and not in_cwd.exists() else in_cwd

    def public(self) -> dict[str, Any]:
        """Return all settings as plain JSON values, for run.json and for `-f`. No setting holds a secret."""
        document = {name: schema.to_json(getattr(self, name)) for name in sections_of()}
        for keys, setting in SETTINGS.items():
            if setting.usual is not None and document[keys[0]][keys[-1]] is None:
                document[keys[0]][keys[-1]] = AUTO
        return document


def load(context: Context) -> Settings:
    """Load the settings of a task's context. Raises UsageError: one line with the first problem and its place."""
    return load_with_places(context)[0]


def load_with_places(context: Context) -> tuple[Settings, dict[Keys, str]]:
    """Load the settings, with the place of each that is set. Raises UsageError as `load` does."""
    entries = _read(context.config)
    _refuse_unknown_variables()
    values = {keys: _parse(keys, entry) for keys, entry in entries.items()}
    if values.get(_SIZE) is None:
        values[_SIZE] = _auto_size(values)
    settings = Settings(root=sources.root_folder(context.config), **_fields(values, entries))
    return settings, {keys: entry.source for keys, entry in entries.items()}


def _read(config: Config) -> dict[Keys, Entry]:
    """Return the strongest value of each setting. Raises UsageError."""
    entries: dict[Keys, Entry] = {}
    for path, is_shared in sources.files(config):
        entries |= _read_file(path, is_shared=is_shared)
    for name, keys in ENVIRONMENT.items():
        if name in os.environ:
            entries[keys] = Entry(os.environ[name], f"environment {name}", is_text=True)
    if path := config._runtime_path:
        entries |= _read_file(expand_user(path))
    for keys, (flag, text) in getattr(config, "typed_settings", {}).items():
        entries[keys] = Entry(text, flag, is_text=True)
    return entries


def _read_file(path: Path, *, is_shared: bool = False) -> dict[Keys, Entry]:
    """Return the values of a file. Raises UsageError, also for an unknown key."""
    data, place_of = sources.read_file(path)
    entries: dict[Keys, Entry] = {}

    def add(section: Mapping[Any, Any], parents: Keys) -> None:
        for key, value in section.items():
            keys = (*parents, str(key))
            if keys in SECTIONS and isinstance(key, str):
                if not isinstance(value, Mapping):
                    names = sources.clip(", ".join(sections_of(keys)), 200)
                    detail = f"expected a section with {names}, found {found_text(value)}"
                    raise UsageError(f"{place_of(keys)}: {'.'.join(keys)}: {detail}")
                add(value, keys)
            elif keys in SETTINGS and isinstance(key, str):
                entries[keys] = Entry(value, place_of(keys))
            elif parents or key not in INVOKES_SECTIONS:
                near = nearest(keys)
                if not parents and is_shared and near is None:
                    continue  # another project's section in a file that is shared
                names = f"{'.'.join(parents) or 'the project'} has {sources.clip(', '.join(sections_of(parents)), 200)}"
                advice = f"did you mean {near}?" if near else names
                raise UsageError(f"{place_of(keys)}: {sources.clip('.'.join(keys))}: unknown setting", remedy=advice)

    add(data, ())
    return entries


def _invalid(keys: Keys, entry: Entry | None, detail: str) -> UsageError:
    """Return the error for a value; `detail` is what was expected, and what was found."""
    if entry is not None and entry.is_text:
        detail = detail.replace("or null", "or nothing")
    return UsageError(f"{'settings' if entry is None else entry.source}: {'.'.join(keys)}{detail}")


def _fields(values: Mapping[Keys, Any], entries: Mapping[Keys, Entry], parents: Keys = ()) -> dict[str, Any]:
    """Return the sections and values directly in a section, by default all sections, by name. Raises UsageError."""
    fields: dict[str, Any] = {}
    for name in sections_of(parents):
        keys = (*parents, name)
        if keys in SECTIONS:
            try:
                fields[name] = SECTIONS[keys](**_fields(values, entries, keys))
            except FieldError as error:
                raise _invalid((*keys, error.key), entries.get((*keys, error.key)), f": {error.detail}") from error
        elif keys in values:
            fields[name] = values[keys]
    return fields


def sections_of(parents: Keys = ()) -> list[str]:
    """Return the names of the sections and settings directly in a section, by default of the sections."""
    depth = len(parents)
    return list(dict.fromkeys(keys[depth] for keys in SETTINGS if keys[:depth] == parents and len(keys) > depth))


def _parse(keys: Keys, entry: Entry) -> Any:
    """Return a setting's value. Raises UsageError."""
    setting, value = SETTINGS[keys], _cast(keys, entry) if entry.is_text else entry.value
    is_open = value == AUTO and (setting.usual is not None or keys == _SIZE)
    if is_open or (value is None and setting.is_nullable):
        return None

    def item(index: object, kind: type, value: Any) -> Any:
        if not _has_type(kind, value):
            expected = "a number" if kind is float else "text of one line, not blank"
            raise _invalid(keys, entry, f"[{index}]: expected {expected}, found {found_text(value)}")
        return float(value) if kind is float else value

    origin = typing.get_origin(setting.kind)
    if origin is tuple and isinstance(value, (list, tuple)):  # a YAML `!!set` has no order and is refused below
        return tuple(item(index, typing.get_args(setting.kind)[0], each) for index, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        for name, each in value.items():
            for text in (name, *([] if each is None else [each])):
                item(sources.clip(str(name)), str, text)
        return dict(value)
    if setting.kind is float and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)  # in YAML 1.1, 2e-4 without a decimal point is text
    if setting.pattern and type(value) is int:
        value = str(value)  # `cpu: 4` is a number in YAML, and valid in Kubernetes
    if not _has_type(setting.kind, value) or setting.problem(value) is not None:
        raise _invalid(keys, entry, f": expected {setting.values}, found {found_text(value)}")
    return float(value) if setting.kind is float else value


def _has_type(kind: Any, value: Any) -> bool:
    if kind is float and type(value) is int:
        return abs(value) <= schema.MAX_INTEGER
    if type(value) is not kind:
        return False
    if kind is str:
        return bool(value.strip()) and value.isprintable()
    return kind is not float or math.isfinite(value)


def _auto_size(values: Mapping[Keys, Any]) -> int:
    """Return the number of workers for `fleet.size: auto`."""
    if values.get(("fleet", "kind")) == "pods":
        return AUTO_WORKERS
    uses_gpus = values.get(("bench", "profile")) == "gpu"
    return local_workers(values.get(("fleet", "local", "threads"), 1), uses_gpus=uses_gpus)


INVOKES_SECTIONS = Config.global_defaults().keys()  # run, sudo, tasks, timeouts, ...: of no effect here
ENVIRONMENT: dict[str, Keys] = {sources.env_name(keys): keys for keys in SETTINGS}


def nearest(keys: Keys) -> str | None:
    """Return the name of the setting or section that an unknown one was probably meant to be."""
    word, known = keys[-1].lower(), sections_of(keys[:-1]) or sections_of()
    if similar := difflib.get_close_matches(word, known, 1):
        return ".".join((*keys[:-1], similar[0]))
    return next((".".join(setting) for setting in SETTINGS if setting[-1] == word), None)


def setting_of(flag: str, section: str) -> Keys | None:
    """Return the setting that a flag names, with its section or, if it is in `section` or the only one, without."""
    name = flag.removeprefix("--").replace("-", "_").replace(".", "_")
    named = [keys for keys in SETTINGS if name in (keys[-1], "_".join(keys))]
    own = [keys for keys in named if keys[0] == section]
    return own[0] if own else named[0] if len(named) == 1 else None


def _refuse_unknown_variables() -> None:
    ours = tuple(sources.env_name((name,)) + "_" for name in sections_of())
    for name in sorted(os.environ):
        if name.startswith(sources.ENV_PREFIX) and name not in ENVIRONMENT:
            is_ours = f"{name}_".startswith(ours)
            near = difflib.get_close_matches(name, ENVIRONMENT, 1, 0.8 if is_ours else 0.9)
            if near or is_ours:
                advice = f"did you mean {near[0]}?" if near else "`invoke.yaml` lists all settings"
                raise UsageError(f"environment {name}: unknown setting", remedy=advice)


def _cast(keys: Keys, entry: Entry) -> Any:
    """Return the value of a variable or a flag: a text, or what it is in YAML or JSON. Raises UsageError."""
    setting = SETTINGS[keys]
    if setting.kind is str:
        return None if setting.is_nullable and entry.value == "" else entry.value
    try:
        return sources.parse_text(entry.value)
    except yaml.YAMLError as error:
        if typing.get_origin(setting.kind) is None:
            return entry.value  # parsing names it
        problem = getattr(error, "problem", None) or "a forbidden character"
        raise _invalid(keys, entry, f": expected JSON, {setting.expected or setting.values}; {problem}") from error
