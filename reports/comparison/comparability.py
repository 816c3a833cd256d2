"""Comparability of runs: whether the same model on the same kind of machine produced the numbers.

Each accepted result has a fingerprint; the complete one is in `environment.json` next to it, if that was collected.
The conditions that must be equal have names, which `inv compare --allow` accepts: profile, gpu, driver, lock, weights,
data, cpu, gpu_settings, variables, workers. The code's version is not one of them: compare exists to compare versions.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.paths import ENVIRONMENT_FILE, TRIALS_FOLDER
from bench.records.status import TrialStatus
from bench.records.units import format_size
from reports import formatting
from reports.read.loaded_run import Run
from reports.read.worker_fingerprints import CPU, device

UNKNOWN = "unknown"
_MAX_ENVIRONMENT_BYTES = 4_000_000  # a usual file lists every package and GPU in some 30 kB
# These select the GPUs that a process sees, so they differ between trials.
_PER_TRIAL_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_COMPUTING = re.compile(
    r"(accelerate|bitsandbytes|cuda|liger|numpy|nvidia|peft|pytorch|safetensors|tokenizers|torch|transformers|triton)",
    re.IGNORECASE,
)
_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")
_GPU_SETTINGS = ("max_sm_clock_mhz", "max_memory_clock_mhz", "power_limit_watts", "ecc")


@dataclass(frozen=True, kw_only=True)
class ConditionDifference:
    """A named condition that differs between runs or trials, with each run's values in the order of the runs."""

    name: str
    values: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def description(self) -> str:
        """Text such as `driver: run a 550.54, run b 580.95`, with the first 12 digits of a digest."""
        values = ", ".join(f"{run} {formatting.first_n(list(values), 3)}" for run, values in self.values)
        return f"{self.name}: {_SHA256.sub(lambda digest: digest[0][:12], values)}"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of a run: the facts of its successful trials, and the UUIDs of each worker's GPUs.

    `values` are the distinct ones by name (see NAMES); a fact that no trial reports is "unknown", which never equals a
    reported value. `is_complete`: every successful trial has an environment.json, which only `inv collect` fetches.
    """

    run_id: str
    values: Mapping[str, tuple[str, ...]]
    gpus_by_worker: Mapping[str, frozenset[str]]
    is_complete: bool


def read_conditions(run: Run) -> Conditions:
    """Read the conditions of a run's successful trials; others may have ended before they reported theirs."""
    documents, is_complete = [], True
    gpus_by_worker: dict[str, set[str]] = {}
    for result in run.results:
        if result.status is not TrialStatus.SUCCEEDED:
            continue
        environment = _read_environment(run.folder / TRIALS_FOLDER / result.trial_id / ENVIRONMENT_FILE)
        is_complete = is_complete and bool(environment)
        document = {**result.fingerprint, **environment}
        documents.append(document)
        known = [gpu.get("uuid") for gpu in _gpus(document)] or [document.get("gpu_uuid")]
        uuids = {str(uuid) for uuid in known if uuid}
        if result.worker is not None and uuids:
            gpus_by_worker.setdefault(result.worker, set()).update(uuids)
    workers = str(len(run.record.workers)) if run.record.is_on_one_machine else "apart"
    values = {name: _distinct(map(read, documents)) for name, read in _READERS.items()}
    return Conditions(
        run_id=run.record.run_id,
        values={"profile": (run.record.profile,)} | values | {"workers": (workers,)},
        gpus_by_worker={worker: frozenset(uuids) for worker, uuids in gpus_by_worker.items()},
        is_complete=is_complete,
    )


def find_differences(runs: Sequence[Conditions]) -> tuple[ConditionDifference, ...]:
    """Return every condition on which the runs, or the trials of one run, disagree."""
    return tuple(
        ConditionDifference(name=name, values=tuple((run.run_id, run.values[name]) for run in runs))
        for name in NAMES
        if len({value for run in runs for value in run.values[name]}) > 1
    )


def same_gpus(first: Conditions, second: Conditions) -> bool:
    """Return whether workers of equal names have the same GPUs (by UUID) in both runs."""
    return bool(first.gpus_by_worker) and first.gpus_by_worker == second.gpus_by_worker


def _read_environment(path: Path) -> dict[str, Any]:
    """Parse environment.json; {} if it is missing (run not fully collected) or invalid (it has no checksum)."""
    try:
        document = schema.checked_value(
            schema.parse(read_regular(path, max_bytes=_MAX_ENVIRONMENT_BYTES, follow=False)), "environment"
        )
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "environment" else {}


def _gpus(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    gpus = document.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    """Sort the distinct values, without "unknown" if others are known: a trial without weights reports no digest."""
    distinct = set(values)
    return tuple(sorted(distinct - {UNKNOWN} or {UNKNOWN}))


def _join_values(document: Mapping[str, Any], *names: str) -> str:
    values = [document.get(name) for name in names]
    return " ".join(str(value) for value in values if value is not None) or UNKNOWN


def _gpu(document: Mapping[str, Any]) -> str:
    name = device(document)
    if name in (CPU, "device unknown"):
        return CPU if name == CPU else UNKNOWN
    size = document.get("gpu_memory_bytes")
    return f"{name}, {format_size(size)}" if isinstance(size, (int, float)) and size else name


def _lock(document: Mapping[str, Any]) -> str:
    """Return the image's lock digest, else a short digest of package versions, else the versions in the result.

    Of the packages those count that change a trial's numbers (_COMPUTING).
    """
    python, torch = _join_values(document, "python"), _join_values(document, "torch")
    if document.get("lock_digest"):
        return f"{document['lock_digest']}"
    packages = document.get("packages")
    if isinstance(packages, Mapping):
        packages = {name: version for name, version in packages.items() if _COMPUTING.match(str(name))}
        short = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()[:12]
        return f"python {python}, torch {torch}, {len(packages)} packages {short}"
    return f"python {python}, torch {torch}, transformers {_join_values(document, 'transformers')}"


def _cpu(document: Mapping[str, Any]) -> str:
    """Describe the CPU of a trial that ran on it; on a GPU the processor hardly affects a step."""
    if device(document) != CPU:
        return "not compared on a GPU"
    return f"{_join_values(document, 'cpu_model')}, {_join_values(document, 'cpu_allowed_cores')} cores, " + (
        f"{_join_values(document, 'torch_threads')} threads"
    )


def _settings(document: Mapping[str, Any]) -> str:
    settings = {
        ", ".join(f"{name} {gpu.get(name)}" for name in _GPU_SETTINGS if name in gpu) for gpu in _gpus(document)
    }
    return "; ".join(sorted(settings)) or "not reported"


def _variables(document: Mapping[str, Any]) -> str:
    variables = document.get("variables")
    variables = variables if isinstance(variables, Mapping) else {}
    names = (name for name in sorted(variables) if name not in _PER_TRIAL_VARIABLES)
    return ", ".join(f"{name}={variables[name]}" for name in names) or "not reported"


_READERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "gpu": _gpu,
    "driver": lambda document: "none" if device(document) == CPU else _join_values(document, "gpu_driver"),
    "lock": _lock,
    "weights": lambda document: _join_values(document, "model_sha256"),
    "data": lambda document: _join_values(document, "data_sha256"),
    "cpu": _cpu,
    "gpu_settings": _settings,
    "variables": _variables,
}
NAMES = ("profile", *_READERS, "workers")
