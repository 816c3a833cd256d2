"""What the workers' fingerprints say about a run as a whole: the device, what differs, and whether they contended.

A fingerprint is `bench.environment`'s allow-list. Its keys are read as they come; only the device, the cores and the
threads are known here by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.result import RunRecord, TrialResult
from reports import text

CPU = "CPU"

# What differs from trial to trial by nature: the configuration itself, and the moment.
_OWN = frozenset({"trial_digest", "load_average_1min_at_start", "seed"})


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key on which the workers disagree: each value, as text, with the workers that have it."""

    key: str
    workers_by_value: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The workers of a run. `devices` are the distinct GPUs, or "CPU"; `device` says them in one phrase.

    `common` holds the keys on which all agree. `contention` is a sentence where workers shared too few cores.
    """

    devices: tuple[str, ...]
    device: str
    common: dict[str, str]
    differences: tuple[Difference, ...]
    contention: str | None


def hosts(record: RunRecord, results: Iterable[TrialResult]) -> Hosts:
    """Read every result's fingerprint. Results without one (written by collect) say nothing."""
    known = [(result.worker or "unknown", result.fingerprint) for result in results if result.fingerprint]
    flat = [(worker, flatten(document)) for worker, document in known]
    devices = tuple(dict.fromkeys(_device(document) for _, document in known))
    common, differences = _compare(flat)
    return Hosts(
        devices=devices,
        device=" and ".join(devices) or "device unknown",
        common=common,
        differences=differences,
        contention=_contention(record, known),
    )


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested JSON as `outer.inner` -> text; None is "none", an empty object is left out."""
    flat: dict[str, str] = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            flat[name] = ", ".join(str(item) for item in value) or "none"
        else:
            flat[name] = "none" if value is None else str(value)
    return flat


def _compare(flat: list[tuple[str, dict[str, str]]]) -> tuple[dict[str, str], tuple[Difference, ...]]:
    common: dict[str, str] = {}
    differences = []
    for key in dict.fromkeys(key for _, document in flat for key in document):
        values: dict[str, dict[str, None]] = {}
        for worker, document in flat:
            values.setdefault(document.get(key, "not said"), {})[worker] = None
        if len(values) == 1:
            common[key] = next(iter(values))
        elif key not in _OWN:
            differences.append(
                Difference(key=key, workers_by_value={value: tuple(workers) for value, workers in values.items()})
            )
    return common, tuple(differences)


def _device(document: Mapping[str, Any]) -> str:
    name = document.get("gpu_name")
    return str(name) if name else CPU if document.get("device") == "cpu" else "device unknown"


def _contention(record: RunRecord, known: list[tuple[str, dict[str, Any]]]) -> str | None:
    """A sentence when the workers of one machine want more threads than it has cores. None where that is not known."""
    if record.fleet_kind != "local":
        return None
    threads = max((document.get("torch_threads") or 0 for _, document in known), default=0)
    cores = min((cores for _, document in known if (cores := document.get("cpu_allowed_cores"))), default=0)
    workers = len(record.workers)
    if not cores or workers * threads <= cores:
        return None
    return (
        f"{workers} workers of {text.count(threads, 'thread')} shared {text.count(cores, 'core')} of one machine, so "
        "they contended: a worker alone would be faster. Compare these configurations with each other, not with "
        "other machines."
    )
