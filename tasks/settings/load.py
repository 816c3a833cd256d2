"""Loader of the settings: merges all sources and validates the result against `tasks.settings.schema`.

`load(context)` merges Invoke's layers (/etc/invoke.yaml, the project's invoke.yaml, ~/.invoke.yaml,
INVOKE_* variables, the -f file) and either returns frozen settings or raises UsageError with one line:

    invoke.yaml:27: fleet.size: expected a whole number from 1 to 1024, found "four"

Not covered: the existence of folders and models, which is checked where they are used.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke.config import Config
from invoke.context import Context
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bench.records.paths import IMAGE_FILE
from remote.hosts.base import Connector
from remote.hosts.connectors import CONNECTORS
from remote.hosts.local import expand_user
from tasks.errors import UsageError
from tasks.settings import sources
from tasks.settings.schema import (
    AUTO,
    AUTO_WORKERS,
    LEAVES,
    TWO_SETTINGS,
    Section,
    Sections,
    expected_text,
    field,
    local_workers,
    section_type,
    value_type,
)
from tasks.settings.sources import Keys, SettingsLayer, SettingsLayers, found_text

_IMAGE_WORKSPACE, _SHARED_RESULTS = "/workspace", "/workspace/results"  # the same paths as in image and manifests


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
        if not self.connector.is_cluster:
            return None
        return self.fleet.pods.shared or (_SHARED_RESULTS if self.cluster.volume.handle else None)

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
        """Return all settings as plain JSON values, for run.json. No setting holds a secret."""
        return self.model_dump(mode="json", exclude={"root"})


def load(context: Context) -> Settings:
    """Load the settings of a task's context. Raises UsageError: one line with the first problem and its place."""
    return load_layers(context)[0]


def load_layers(context: Context) -> tuple[Settings, SettingsLayers]:
    """Load the settings with the layers that they come from. Raises UsageError as `load` does."""
    layers = sources.read(context.config, ENVIRONMENT)
    for layer in layers.weakest_first:
        _refuse_unknown(layer, layer.data, Sections)
    _refuse_unknown_variables()
    merged = {key: value for key, value in layers.merged().items() if key in Sections.model_fields}
    for keys in LEAVES:
        strongest = layers.strongest(keys)
        if strongest is not None and strongest.environment:
            sources.set_value(merged, keys, _cast(strongest.get(keys), field(keys)))
    _resolve_auto_size(merged)
    try:
        sections = Sections.model_validate(merged)
    except ValidationError as error:
        raise UsageError(_first_problem(error, layers)) from error
    return Settings(root=layers.root, **{name: getattr(sections, name) for name in Sections.model_fields}), layers


def _resolve_auto_size(merged: dict[str, Any]) -> None:
    """Replace `fleet.size: auto`, or a missing size, by the number of workers. Validation reports other mistakes."""
    fleet = merged.get("fleet", {})
    if not isinstance(fleet, Mapping) or fleet.get("size", AUTO) != AUTO:
        return
    local, bench = fleet.get("local"), merged.get("bench")
    threads = local.get("threads") if isinstance(local, Mapping) else None
    profile = bench.get("profile") if isinstance(bench, Mapping) else None
    threads = threads if type(threads) is int and threads > 0 else 1
    size = AUTO_WORKERS if fleet.get("kind") == "pods" else local_workers(threads, uses_gpus=profile == "gpu")
    merged["fleet"] = {**fleet, "size": size}


INVOKE_DEFAULTS: dict[str, Any] = Config.global_defaults()  # run, sudo, tasks, timeouts, ...
ENVIRONMENT: dict[str, Keys] = {sources.env_name(keys): keys for keys in LEAVES}


def _refuse_unknown(layer: SettingsLayer, data: Mapping[Any, Any], model: type[Section], parents: Keys = ()) -> None:
    for key, value in data.items():
        keys = (*parents, str(key))
        info = model.model_fields.get(key) if isinstance(key, str) else None
        if info is None:
            if not parents and key in INVOKE_DEFAULTS:
                _refuse_unmergeable(layer, keys, value, INVOKE_DEFAULTS[key])
                continue
            near = nearest(keys, model)
            if not parents and layer.shared and near is None:
                continue  # another project's section in a file that is shared
            names = f"{'.'.join(parents) or 'the project'} has {sources.clip(', '.join(model.model_fields), 200)}"
            advice = f"did you mean {near}?" if near else names
            raise UsageError(f"{layer.where(keys)}: {sources.clip('.'.join(keys))}: unknown setting", remedy=advice)
        subsection = section_type(info)
        if subsection is not None and not isinstance(value, Mapping):
            names = sources.clip(", ".join(subsection.model_fields), 200)
            raise UsageError(
                f"{layer.where(keys)}: {'.'.join(keys)}: expected a section with {names}, found {found_text(value)}"
            )
        if subsection is not None:
            _refuse_unknown(layer, value, subsection, keys)


def _refuse_unmergeable(layer: SettingsLayer, keys: Keys, value: object, default: object) -> None:
    # Of Invoke's own keys, check only what would end its merge in a traceback.
    if isinstance(default, Mapping) != isinstance(value, Mapping):
        kind = "a section" if isinstance(default, Mapping) else "a value"
        raise UsageError(f"{layer.where(keys)}: {'.'.join(keys)}: expected {kind}, found {found_text(value)}")
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        for key in value:
            if key in default:
                _refuse_unmergeable(layer, (*keys, str(key)), value[key], default[key])


# Common names of settings that have another name here, for the suggestion in an error.
SYNONYMS: dict[str, Keys] = {
    **dict.fromkeys(("workers", "replicas", "nodes", "count", "gpus"), ("fleet", "size")),
    **dict.fromkeys(("lr", "learn_rate"), ("bench", "learning_rate")),
    **dict.fromkeys(("batch", "batch_size"), ("train", "micro_batch_size")),
    **dict.fromkeys(("sequence_length", "seq_len", "max_length"), ("train", "max_seq_len")),
    **dict.fromkeys(("rank", "lora_r"), ("tune", "lora_rank")),
    **dict.fromkeys(("price", "usd_per_hour"), ("cost", "price_usd_per_gpu_hour")),
    **dict.fromkeys(("steps", "max_steps"), ("bench", "measured_steps")),
}


def nearest(keys: Keys, model: type[Section]) -> str | None:
    word = keys[-1].lower()
    other = SYNONYMS.get(word)
    if other is not None and other[-1] in model.model_fields:
        return ".".join((*keys[:-1], other[-1]))
    similar = difflib.get_close_matches(word, list(model.model_fields), 1, 0.6 if other is None else 0.7)
    if other is not None and not similar and len(keys) > 1:
        return ".".join(other)
    same_name = [".".join(leaf) for leaf in LEAVES if leaf[-1] == keys[-1]]
    return ".".join((*keys[:-1], similar[0])) if similar else next(iter(same_name), None)


def _refuse_unknown_variables() -> None:
    sections = {sources.env_name(keys[:depth]) for keys in LEAVES for depth in range(1, len(keys))}
    ours = tuple(sources.env_name((name,)) + "_" for name in Sections.model_fields)
    for name in sorted(os.environ):
        if not name.startswith(sources.ENV_PREFIX) or name in ENVIRONMENT:
            continue
        if name in sections:
            example = next(variable for variable in ENVIRONMENT if variable.startswith(f"{name}_"))
            raise UsageError(
                f"environment {name}: a section, not a setting", remedy=f"set its settings one by one, e.g. {example}"
            )
        near = difflib.get_close_matches(name, ENVIRONMENT, 1, 0.8 if name.startswith(ours) else 0.9)
        if near or name.startswith(ours):
            advice = f"did you mean {near[0]}?" if near else "`invoke.yaml` lists all settings"
            raise UsageError(f"environment {name}: unknown setting", remedy=advice)


def _cast(text: str, info: FieldInfo) -> Any:
    kind, nullable = value_type(info.annotation)
    if nullable and text == "":
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text  # validation names it
    return text


def _first_problem(error: ValidationError, layers: SettingsLayers) -> str:
    problem = error.errors()[0]
    if problem["type"] == TWO_SETTINGS:
        context = problem["ctx"]
        source = _where(layers, context["at"])
        return f"{source}: {context['name']}: expected {problem['msg']}, found {context['found']}"
    path = problem["loc"]
    texts = tuple(part for part in path if isinstance(part, str))
    keys = next((leaf for leaf in LEAVES if texts[: len(leaf)] == leaf), texts)  # without the key of an item in it
    layer = layers.strongest(keys)
    items = [
        f"[{sources.clip(str(part))}]" for part in path[len(keys) :] if part != "[key]"
    ]  # pydantic marks a bad key so
    name = ".".join(keys) + "".join(items)
    item_text = {"string_type": "text", "value_error": "text of one line, not blank"}.get(problem["type"], "a number")
    expected = item_text if items else expected_text(field(keys))
    advice = ""
    if layer is not None and layer.environment:
        expected = expected.replace("or null", "or nothing")  # "null" would be text there
        kind = next((word for word in ("list", "mapping") if word in expected), None)
        advice = "" if kind is None else f"; a {kind} needs a file"
    return f"{_where(layers, keys)}: {name}: expected {expected}, found {found_text(problem['input'])}{advice}"


def _where(layers: SettingsLayers, keys: Keys) -> str:
    layer = layers.strongest(keys)
    return "settings" if layer is None else layer.where(keys)
