"""Fingerprints of a run's workers: the device, differences between trials, and CPU contention.

A fingerprint has the keys of the allow-list in `bench.machine.fingerprint`. They are handled generically, except those
named here: device, cores, threads, and the groups below.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.records.result import TrialResult
from bench.records.run import RunRecord
from bench.records.status import TrialStatus

CPU = "CPU"
UNKNOWN_DEVICE = "device unknown"

# Facts that always differ between trials: the training itself, the time, and the choice among equal GPUs.
_TRIAL_SPECIFIC = frozenset(
    {
        "trial_digest",
        "load_average_1min_at_start",
        "gpu_memory_used_at_start_bytes",
        "gpu_uuid",
        "seed",
    }
)
# Facts that a configuration requests. They may differ between configurations, but two trials of one configuration
# differ only if a machine could not provide the requested value.
_REQUESTED = frozenset({"recipe", "recipe_notes", "step_captured", "optimizer", "trained_parameters"})
# Equal machines report slightly different memory sizes, because their firmware reserves a part.
_MEMORY_SIZES = frozenset({"memory_total_bytes", "gpu_memory_bytes"})
_MAX_SIZE_RATIO = 1.01


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts of a run. `devices` are the distinct GPUs, or "CPU"; `device` joins them to one phrase.

    `common` has the keys on which all trials agree, `differences` of the others each value's workers. `contention` has
    the workers, threads of each, and cores if these were too few.
    """

    devices: tuple[str, ...]
    device: str
    common: dict[str, str]
    differences: dict[str, dict[str, tuple[str, ...]]]
    contention: dict[str, int] | None


def describe_hosts(record: RunRecord, results: Iterable[TrialResult]) -> Hosts:
    """Combine the results' fingerprints. Ignores results without one (collect writes such results)."""
    known = [result for result in results if result.fingerprint]
    all_devices = dict.fromkeys(device(result.fingerprint) for result in known)
    # A trial that was stopped early has not detected its device.
    devices = tuple(name for name in all_devices if name != UNKNOWN_DEVICE) or tuple(all_devices)
    common, differences = _compare([(result, _texts(result.fingerprint)) for result in known])
    return Hosts(
        devices=devices,
        device=" and ".join(devices) or UNKNOWN_DEVICE,
        common=common,
        differences=differences,
        contention=_contention(record, [result.fingerprint for result in known]),
    )


def _texts(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    return {key: "none" if value in (None, "") else str(value) for key, value in flatten(fingerprint).items()}


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested JSON to `outer.inner` -> value; a list becomes text, empty objects are left out."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return flat


def _compare(
    flat: list[tuple[TrialResult, dict[str, str]]],
) -> tuple[dict[str, str], dict[str, dict[str, tuple[str, ...]]]]:
    common: dict[str, str] = {}
    differences = {}
    for key in dict.fromkeys(key for _, document in flat for key in document):
        # Some keys exist only for some kinds of trial: only a training has an optimizer.
        kinds = {result.trial.kind for result, document in flat if key in document}
        holders: dict[str, list[TrialResult]] = {}
        for result, document in flat:
            # A trial that failed may have ended before it reported this key.
            if key in document or (result.trial.kind in kinds and result.status is TrialStatus.SUCCEEDED):
                holders.setdefault(document.get(key, "not reported"), []).append(result)
        if len(holders) == 1 or (key in _MEMORY_SIZES and _are_nearly_equal(list(holders))):
            common[key] = next(iter(holders))
        elif key not in _TRIAL_SPECIFIC and not (key in _REQUESTED and _is_per_configuration(holders)):
            differences[key] = {
                value: tuple(dict.fromkeys(each.worker or "unknown" for each in results))
                for value, results in holders.items()
            }
    return common, differences


def _are_nearly_equal(sizes: list[str]) -> bool:
    known = [float(size) for size in sizes if size.isdecimal()]
    return len(known) == len(sizes) and max(known) <= _MAX_SIZE_RATIO * min(known)


def _is_per_configuration(holders: Mapping[str, list[TrialResult]]) -> bool:
    """Return whether each configuration has a single value."""
    names = [{result.trial.name for result in results} for results in holders.values()]
    return sum(map(len, names)) == len(set().union(*names))


def device(document: Mapping[str, Any]) -> str:
    """Return the GPU's name, CPU, or UNKNOWN_DEVICE."""
    name = document.get("gpu_name")
    return str(name) if name else CPU if document.get("device") == "cpu" else UNKNOWN_DEVICE


def _contention(record: RunRecord, known: list[dict[str, Any]]) -> dict[str, int] | None:
    """Return workers, threads of each and cores if a machine has fewer cores than threads; None if not or unknown."""
    if not record.is_on_one_machine:
        return None
    threads = max((document.get("torch_threads") or 0 for document in known), default=0)
    cores = min((cores for document in known if (cores := document.get("cpu_allowed_cores"))), default=0)
    workers = len(record.workers)
    return {"workers": workers, "threads": threads, "cores": cores} if 0 < cores < workers * threads else None
