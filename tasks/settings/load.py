"""The settings that count, typed and checked. `tasks.settings.schema` says what each may hold.

`load(context)` merges Invoke's layers (/etc/invoke.yaml, the project's invoke.yaml, ~/.invoke.yaml,
INVOKE_* variables, the -f file) and either returns frozen settings or raises UsageError with one line:

    invoke.yaml:27: fleet.size: expected a whole number from 1 to 1024, found "four"

Not covered: whether a folder or a model exists; that is checked where it is used.
"""

import difflib
import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke.config import Config
from invoke.context import Context
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bench.records.paths import IMAGE_FILE
from remote.hosts.local import expanded
from tasks.errors import UsageError
from tasks.settings import sources
from tasks.settings.schema import LEAVES, TWO_SETTINGS, Section, Sections, expected, field, kind_of, section
from tasks.settings.sources import Keys, SettingsLayer, SettingsLayers, found_text

_IMAGE_WORKSPACE, _SHARED_RESULTS = "/workspace", "/workspace/results"  # as image and manifests have them


class Settings(Sections):
    """The settings that count. `root` is the project's folder: where tasks.py and invoke.yaml are."""

    root: Path

    @property
    def workspace(self) -> Path:
        """The folder on a worker where `python -m bench` is started and relative paths begin."""
        if self.fleet.kind == "pods":
            return Path(_IMAGE_WORKSPACE, self.fleet.workspace or "")
        return self.root / (self.fleet.workspace or "")

    @property
    def shared_results(self) -> str | None:
        """The folder that all workers share and that outlives them; None where the fleet has none."""
        if self.fleet.kind != "pods":
            return None
        return self.fleet.pods.shared or (_SHARED_RESULTS if self.cluster.fss.volume_handle else None)

    @property
    def results_folder(self) -> Path:
        """Where runs are kept on this machine."""
        return self.root / self.results.folder

    @property
    def image_file(self) -> Path:
        """What `inv push` writes: the pushed image's repository, digest and sizes."""
        return self.results_folder / IMAGE_FILE

    def file(self, path: str) -> Path:
        """A path that a setting gives: from the project's folder, unless it is absolute or begins with ~."""
        return self.root / expanded(path)

    def typed(self, path: str) -> Path:
        """A path that was typed: from the folder where it was typed, or, where there is none, from the project's."""
        here, of_project = Path.cwd() / path, self.root / path
        return of_project if of_project.exists() and not here.exists() else here

    def public(self) -> dict[str, Any]:
        """All settings as plain JSON values, for run.json. None of them is a secret."""
        return self.model_dump(mode="json", exclude={"root"})


def load(context: Context) -> Settings:
    """The settings of a task's context. Raises UsageError: one line naming the first problem and its place."""
    config = context.config
    found = sources.read(config, {**ENVIRONMENT, **{sources.env_name(old): old for old in RENAMED}})
    for layer in found.weakest_first:
        _refuse_unknown(layer, layer.data, Sections)
    _refuse_unknown_variables()
    merged = {key: value for key, value in found.merged().items() if key in Sections.model_fields}
    for name, keys in ENVIRONMENT.items():
        strongest = found.strongest(keys)
        if strongest is not None and strongest.environment:
            sources.put(merged, keys, _cast(os.environ[name], field(keys)))
    for old, new in RENAMED.items():
        _rename(merged, found, old, new)
    try:
        sections = Sections.model_validate(merged)
    except ValidationError as error:
        raise UsageError(_first_problem(error, found)) from None
    return Settings(root=found.root, **{name: getattr(sections, name) for name in Sections.model_fields})


INVOKES_OWN: dict[str, Any] = Config.global_defaults()  # run, sudo, tasks, timeouts, ...
ENVIRONMENT: dict[str, Keys] = {sources.env_name(keys): keys for keys in LEAVES}


RENAMED: dict[Keys, Keys] = {("cluster", "registry_user"): ("registry", "user")}


def _rename(merged: dict[Any, Any], found: SettingsLayers, old: Keys, new: Keys) -> None:
    """Give the value of a setting's old name to the new one, and print both names. UsageError where values differ."""
    layer, value = found.strongest(old), merged.get(old[0], {}).pop(old[1], None)
    if layer is None or value in (None, ""):
        return
    newer = merged.get(new[0], {}).get(new[1])
    names = f"{layer.where(old)}: {'.'.join(old)} is now {'.'.join(new)}"
    if newer not in (None, value):
        raise UsageError(
            f"{names}, and both are set, to {found_text(value)} and {found_text(newer)}; remove the old one"
        )
    sources.put(merged, new, value)
    _print_once(f"{names}; rename it there")


@functools.cache
def _print_once(line: str) -> None:
    """Settings are loaded several times in one command."""
    print(line, file=sys.stderr)


def _refuse_unknown(layer: SettingsLayer, data: Mapping[Any, Any], model: type[Section], above: Keys = ()) -> None:
    for key, value in data.items():
        keys = (*above, str(key))
        if keys in RENAMED:
            continue
        info = model.model_fields.get(key) if isinstance(key, str) else None
        if info is None:
            if not above and key in INVOKES_OWN:
                _refuse_unmergeable(layer, keys, value, INVOKES_OWN[key])
                continue
            nearest = _nearest(keys, model)
            if not above and layer.shared and nearest is None:
                continue  # another project's section in a file that is shared
            names = f"{'.'.join(above) or 'the project'} has {sources.clip(', '.join(model.model_fields), 200)}"
            advice = f"did you mean {nearest}?" if nearest else names
            raise UsageError(f"{layer.where(keys)}: {sources.clip('.'.join(keys))}: unknown setting; {advice}")
        below = section(info)
        if below is not None and not isinstance(value, Mapping):
            names = sources.clip(", ".join(below.model_fields), 200)
            raise UsageError(
                f"{layer.where(keys)}: {'.'.join(keys)}: expected a section with {names}, found {found_text(value)}"
            )
        if below is not None:
            _refuse_unknown(layer, value, below, keys)


def _refuse_unmergeable(layer: SettingsLayer, keys: Keys, value: object, default: object) -> None:
    # Invoke's own keys are not checked, but for what would end its merge in a traceback.
    if isinstance(default, Mapping) != isinstance(value, Mapping):
        kind = "a section" if isinstance(default, Mapping) else "a value"
        raise UsageError(f"{layer.where(keys)}: {'.'.join(keys)}: expected {kind}, found {found_text(value)}")
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        for key in value:
            if key in default:
                _refuse_unmergeable(layer, (*keys, str(key)), value[key], default[key])


# What people call a setting that has another name here.
OTHER_NAMES: dict[str, Keys] = {
    **dict.fromkeys(("workers", "replicas", "nodes", "count", "gpus"), ("fleet", "size")),
    **dict.fromkeys(("lr", "learn_rate"), ("bench", "learning_rate")),
    **dict.fromkeys(("batch", "batch_size"), ("train", "micro_batch_size")),
    **dict.fromkeys(("sequence_length", "seq_len", "max_length"), ("train", "max_seq_len")),
    **dict.fromkeys(("rank", "lora_r"), ("tune", "lora_rank")),
    **dict.fromkeys(("price", "usd_per_hour"), ("cost", "price_usd_per_gpu_hour")),
    **dict.fromkeys(("steps", "max_steps"), ("bench", "measured_steps")),
}


def _nearest(keys: Keys, model: type[Section]) -> str | None:
    word = keys[-1].lower()
    other = OTHER_NAMES.get(word)
    if other is not None and other[-1] in model.model_fields:
        return ".".join((*keys[:-1], other[-1]))
    beside = difflib.get_close_matches(word, list(model.model_fields), 1, 0.6 if other is None else 0.7)
    if other is not None and not beside and len(keys) > 1:
        return ".".join(other)
    elsewhere = [".".join(leaf) for leaf in LEAVES if leaf[-1] == keys[-1]]
    return ".".join((*keys[:-1], beside[0])) if beside else next(iter(elsewhere), None)


def _refuse_unknown_variables() -> None:
    sections = {sources.env_name(keys[:depth]) for keys in LEAVES for depth in range(1, len(keys))}
    ours = tuple(sources.env_name((name,)) + "_" for name in Sections.model_fields)
    for name in sorted(os.environ):
        if not name.startswith(sources.ENV_PREFIX) or name in (*ENVIRONMENT, *map(sources.env_name, RENAMED)):
            continue
        if name in sections:
            one = next(each for each in ENVIRONMENT if each.startswith(f"{name}_"))
            raise UsageError(f"environment {name}: a section, not a setting; set its settings one by one, e.g. {one}")
        near = difflib.get_close_matches(name, ENVIRONMENT, 1, 0.8 if name.startswith(ours) else 0.9)
        if near or name.startswith(ours):
            advice = f"did you mean {near[0]}?" if near else "`invoke.yaml` lists all settings"
            raise UsageError(f"environment {name}: unknown setting; {advice}")


def _cast(text: str, info: FieldInfo) -> Any:
    kind, nullable = kind_of(info)
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


def _first_problem(error: ValidationError, found: SettingsLayers) -> str:
    problem = error.errors()[0]
    if problem["type"] == TWO_SETTINGS:
        context = problem["ctx"]
        at = _where(found, context["at"])
        return f"{at}: {context['name']}: expected {problem['msg']}, found {context['found']}"
    place = problem["loc"]
    keys = tuple(part for part in place if isinstance(part, str))
    layer = found.strongest(keys)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    of_list = {"string_type": "text", "value_error": "text of one line, not blank"}.get(problem["type"], "a number")
    words = of_list if isinstance(place[-1], int) else expected(field(keys))
    advice = ""
    if layer is not None and layer.environment:
        words = words.replace("or null", "or nothing")  # "null" would be text there
        advice = "; a list stands in files only" if "list" in words else ""
    return f"{_where(found, keys)}: {name}: expected {words}, found {found_text(problem['input'])}{advice}"


def _where(found: SettingsLayers, keys: Keys) -> str:
    layer = found.strongest(keys)
    return "settings" if layer is None else layer.where(keys)
