"""Whether runs can be compared at all: did the same model on the same kind of machine make both numbers?

A fingerprint is read from every accepted result, and in full from `environment.json` beside it where that came along.
What must be equal has a name, which `inv compare --allow` takes: profile, gpu, driver, lock, weights, data, cpu,
gpu_settings, variables, workers. The code's version is not among them: comparing two versions is what compare is for.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.paths import ENVIRONMENT_FILE, TRIALS_FOLDER
from bench.records.result import TrialStatus
from reports import formatting
from reports.read.fingerprint import CPU, device
from reports.read.run import Run

UNKNOWN = "unknown"
_MOST_BYTES = 4_000_000  # it lists every package and every GPU: some 30 kB
# Which of several GPUs a process may see follows from the trial itself.
_OWN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_SETTINGS = ("clock_max_sm_mhz", "clock_max_memory_mhz", "power_cap_watts", "ecc")


@dataclass(frozen=True, kw_only=True)
class ConditionDifference:
    """One named condition that is not the same everywhere: each run's values, in the order of the runs."""

    name: str
    values: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def words(self) -> str:
        """`driver: run a 550.54, run b 580.95`."""
        return f"{self.name}: " + ", ".join(f"{run} {formatting.first_n(list(held), 3)}" for run, held in self.values)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a run was made under: a name of NAMES to its distinct values; and which GPUs each worker had, by UUID.

    `is_full` where every successful trial's environment.json is there: a run that was not collected has none.
    """

    run_id: str
    values: Mapping[str, tuple[str, ...]]
    gpus_of: Mapping[str, frozenset[str]]
    is_full: bool


def conditions(run: Run) -> Conditions:
    """Read the conditions of a run's successful trials. A fact that no trial
    reports is "unknown" and never equal to a reported one.
    """
    documents, is_full = [], True
    gpus_of: dict[str, set[str]] = {}
    for result in run.results:
        if result.status is not TrialStatus.SUCCEEDED:
            continue  # it may have ended before it knew
        full = _full(run.folder / TRIALS_FOLDER / result.trial_id / ENVIRONMENT_FILE)
        is_full = is_full and bool(full)
        document = {**result.fingerprint, **full}
        documents.append(document)
        known = [gpu.get("uuid") for gpu in _gpus(document)] or [document.get("gpu_uuid")]
        uuids = {str(uuid) for uuid in known if uuid}
        if result.worker is not None and uuids:
            gpus_of.setdefault(result.worker, set()).update(uuids)
    values = {name: _distinct(read(document) for document in documents) for name, read in _READERS.items()}
    values["profile"] = (run.record.profile,)
    values["workers"] = (str(len(run.record.workers)) if run.record.fleet_kind == "local" else "apart",)
    return Conditions(
        run_id=run.record.run_id,
        values={name: values[name] for name in NAMES},
        gpus_of={worker: frozenset(held) for worker, held in gpus_of.items()},
        is_full=is_full,
    )


def unlike(of: Sequence[Conditions]) -> tuple[ConditionDifference, ...]:
    """Every name on which the runs, or the trials of one of them, disagree."""
    return tuple(
        ConditionDifference(name=name, values=tuple((one.run_id, one.values[name]) for one in of))
        for name in NAMES
        if len({value for one in of for value in one.values[name]}) > 1
    )


def same_gpus(one: Conditions, other: Conditions) -> bool:
    """True where each worker of one run has the very GPUs that the worker of the same name has in the other."""
    return bool(one.gpus_of) and one.gpus_of == other.gpus_of


def _full(path: Path) -> dict[str, Any]:
    """environment.json, or nothing: runs that were not collected in full have none, and it is no sealed record."""
    try:
        document = schema.bounded(schema.parse(read_regular(path, most_bytes=_MOST_BYTES, follow=False)), "environment")
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "environment" else {}


def _gpus(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = document.get("gpus")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    """Without "unknown" where others are known: a trial that needs no weights reports none."""
    found = set(values)
    return tuple(sorted(found - {UNKNOWN} or {UNKNOWN}))


def _words(document: Mapping[str, Any], *names: str) -> str:
    found = [document.get(name) for name in names]
    return " ".join(str(value) for value in found if value is not None) or UNKNOWN


def _gpu(document: Mapping[str, Any]) -> str:
    name = device(document)
    if name in (CPU, "device unknown"):
        return CPU if name == CPU else UNKNOWN
    size = document.get("gpu_memory_bytes")
    return f"{name}, {formatting.size(size)}" if isinstance(size, (int, float)) and size else name


def _lock(document: Mapping[str, Any]) -> str:
    """The image's lock, else every package's version in one short digest, else the stack the result names."""
    python = _words(document, "python")
    if document.get("lock_digest"):
        return f"{document['lock_digest']}"
    packages = document.get("packages")
    if isinstance(packages, Mapping):
        short = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()[:12]
        return f"python {python}, torch {_words(document, 'torch')}, {len(packages)} packages {short}"
    return f"python {python}, torch {_words(document, 'torch')}, transformers {_words(document, 'transformers')}"


def _cpu(document: Mapping[str, Any]) -> str:
    """Of a trial on the CPU only: on a GPU the processor hardly shows in a step."""
    if device(document) != CPU:
        return "not compared on a GPU"
    return f"{_words(document, 'cpu_model')}, {_words(document, 'cpu_allowed_cores')} cores, " + (
        f"{_words(document, 'torch_threads')} threads"
    )


def _settings(document: Mapping[str, Any]) -> str:
    settings = {", ".join(f"{name} {gpu.get(name)}" for name in _SETTINGS if name in gpu) for gpu in _gpus(document)}
    return "; ".join(sorted(settings)) or "not reported"


def _variables(document: Mapping[str, Any]) -> str:
    held = document.get("variables")
    held = held if isinstance(held, Mapping) else {}
    return ", ".join(f"{name}={held[name]}" for name in sorted(held) if name not in _OWN_VARIABLES) or "not reported"


_READERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "gpu": _gpu,
    "driver": lambda document: "none" if device(document) == CPU else _words(document, "gpu_driver"),
    "lock": _lock,
    "weights": lambda document: _words(document, "model_sha256"),
    "data": lambda document: _words(document, "data_sha256"),
    "cpu": _cpu,
    "gpu_settings": _settings,
    "variables": _variables,
}
NAMES = ("profile", *_READERS, "workers")
