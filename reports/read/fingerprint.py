"""What the workers' fingerprints say about a run as a whole: the device, what differs, and whether they contended.

A fingerprint is `bench.machine.fingerprint`'s allow-list. Its keys are read as they come; only the device, the cores
and the threads are known here by name.
"""

import marshal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.records.result import TrialResult, TrialStatus
from bench.records.run import RunRecord
from reports import formatting

CPU = "CPU"
NO_DEVICE = "device unknown"

# What differs from trial to trial by nature: what it trained, the moment, and which of several equal GPUs it had.
_OWN = frozenset(
    {
        "trial_digest",
        "load_average_1min_at_start",
        "gpu_memory_used_at_start_bytes",
        "gpu_uuid",
        "seed",
        "lora_weights_sha256",
        "telemetry_cost_percent",
        "peak_vram_reserved_bytes",
        "rank_peak_rss_bytes",
        "gradient_buckets_bytes",
    }
)
# What a configuration asks for. Two of them may differ in it; two trials of one do where a machine could not have it.
_ASKED = frozenset({"recipe", "recipe_notes", "step_captured", "optimizer", "trained_parameters"})
# Machines of one kind tell their memory to within what their firmware took.
_SIZES = frozenset({"memory_total_bytes", "gpu_memory_bytes"})
_ALIKE = 1.01


@dataclass(frozen=True, kw_only=True)
class FingerprintDifference:
    """A key on which the trials disagree: each value, as text, with where it was found.

    Where are workers when each worker has one value, trial ids when the value changed on a worker during the run.
    """

    key: str
    where_by_value: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """What a run ran on. `devices` are the distinct GPUs, or "CPU"; `device` says them in one phrase.

    `common` holds the keys on which all trials agree. `contention` is a sentence where workers shared too few cores.
    """

    devices: tuple[str, ...]
    device: str
    common: dict[str, str]
    differences: tuple[FingerprintDifference, ...]
    contention: str | None


def hosts(record: RunRecord, results: Iterable[TrialResult]) -> Hosts:
    """Read every result's fingerprint. Results without one (written by collect) say nothing."""
    known = [result for result in results if result.fingerprint]
    told = dict.fromkeys(device(result.fingerprint) for result in known)
    # A trial that was stopped before it looked says nothing of its device.
    devices = tuple(one for one in told if one != NO_DEVICE) or tuple(told)
    flat: dict[bytes, dict[str, str]] = {}  # a worker's trials say the same
    packed = [marshal.dumps(result.fingerprint, 2) for result in known]  # in this version equal bytes are equal values
    for document, result in zip(packed, known, strict=True):
        if document not in flat:
            flat[document] = flatten(result.fingerprint)
    common, differences = _compare([(result, flat[document]) for result, document in zip(known, packed, strict=True)])
    return Hosts(
        devices=devices,
        device=" and ".join(devices) or NO_DEVICE,
        common=common,
        differences=differences,
        contention=_contention(record, [result.fingerprint for result in known]),
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


def _compare(
    flat: list[tuple[TrialResult, dict[str, str]]],
) -> tuple[dict[str, str], tuple[FingerprintDifference, ...]]:
    common: dict[str, str] = {}
    differences = []
    for key in dict.fromkeys(key for _, document in flat for key in document):
        # A kind of trial that never says a key does not differ in it: only a training has an optimizer.
        kinds = {result.trial.kind for result, document in flat if key in document}
        holders: dict[str, list[TrialResult]] = {}
        for result, document in flat:
            if result.trial.kind not in kinds:
                continue
            if key not in document and result.status is not TrialStatus.SUCCEEDED:
                continue  # it ended before it knew
            holders.setdefault(document.get(key, "not reported"), []).append(result)
        if len(holders) == 1 or (key in _SIZES and _are_alike(list(holders))):
            common[key] = next(iter(holders))
        elif key not in _OWN and not (key in _ASKED and _is_as_asked(holders)):
            differences.append(FingerprintDifference(key=key, where_by_value=_places(holders)))
    return common, tuple(differences)


def _are_alike(sizes: list[str]) -> bool:
    known = [float(size) for size in sizes if size.isdecimal()]
    return len(known) == len(sizes) and max(known) <= _ALIKE * min(known)


def _is_as_asked(holders: Mapping[str, list[TrialResult]]) -> bool:
    """True where each configuration has one value."""
    names = [{result.trial.name for result in found} for found in holders.values()]
    return sum(map(len, names)) == len(set().union(*names))


def _places(holders: Mapping[str, list[TrialResult]]) -> dict[str, tuple[str, ...]]:
    """Workers where each has one value, else trials."""
    workers = {
        value: tuple(dict.fromkeys(one.worker or "unknown" for one in found)) for value, found in holders.items()
    }
    if sum(map(len, workers.values())) == len({worker for found in workers.values() for worker in found}):
        return workers
    return {value: tuple(one.trial_id for one in found) for value, found in holders.items()}


def device(document: Mapping[str, Any]) -> str:
    """The GPU's name, "CPU", or NO_DEVICE."""
    name = document.get("gpu_name")
    return str(name) if name else CPU if document.get("device") == "cpu" else NO_DEVICE


def _contention(record: RunRecord, known: list[dict[str, Any]]) -> str | None:
    """A sentence when the workers of one machine want more threads than it has cores. None where that is not known."""
    if record.fleet_kind != "local":
        return None
    threads = max((document.get("torch_threads") or 0 for document in known), default=0)
    cores = min((cores for document in known if (cores := document.get("cpu_allowed_cores"))), default=0)
    workers = len(record.workers)
    if not cores or workers * threads <= cores:
        return None
    return (
        f"{workers} workers of {formatting.count(threads, 'thread')} shared {formatting.count(cores, 'core')} of one machine, so "
        "they contended: a worker alone would be faster. Compare these configurations with each other, not with "
        "other machines."
    )
