"""`inv bench --reuse`: results of earlier runs that stand in for planned trials.

A result stands in if it is sealed, SUCCEEDED without a flag, of the same trial on the same worker, and the worker's
machine and software are still those that measured it. Each result stands in once. It is marked in the plan, in the
record and in the report, and `inv compare` leaves it out. Not covered: runs of other results folders.
"""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.checksummed import ResultError
from bench.records.paths import ENVIRONMENT_FILE, RESULT_FILE, TELEMETRY_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from reports import formatting
from tasks.errors import escape_controls, results_write_errors
from tasks.fleet.run_store import LATEST
from tasks.settings.load import Settings

MAX_ENVIRONMENT_BYTES = 4_000_000
NO_RESULT = "no earlier result of the same trial on this worker"
# Facts that must be equal, with their names for people. An unknown fact equals nothing, except where it may be absent.
SAME_FACTS = {
    "model_sha256": "model",
    "data_sha256": "data",
    "code_sha256": "code",
    "python": "Python",
    "cuda": "CUDA",
    "cpu_model": "CPU",
    "cpu_allowed_cores": "CPU cores",
}
ABSENT_FACTS = ("cuda",)  # without a GPU
IMAGE_FACTS = {"image_digest": "image", "lock_digest": "image's packages"}  # absent outside an image
GPU_SETTINGS = ("driver", "vbios", "clock_max_sm_mhz", "clock_max_memory_mhz", "power_cap_watts", "ecc")
# Values that the bench gives to variables that are not set, when it loads torch or looks for GPUs.
BENCH_VARIABLES = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
PER_TRIAL_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Results by the planned trials for which they stand in, each with its folder, and why the others have none."""

    results: Mapping[str, tuple[TrialResult, Path]]
    reasons: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        """Yield what is reused, and for each reason how many trials are measured."""
        planned = len(self.results) + len(self.reasons)
        yield f"reused: {len(self.results)} of {formatting.count(planned, 'trial')}"
        for trial_id, (result, _) in self.results.items():
            yield escape_controls(f"  {trial_id}: {result.run_id}/{result.trial_id}")
        for reason, count in Counter(self.reasons.values()).most_common():
            yield escape_controls(f"measured: {formatting.count(count, 'trial')}: {reason}")

    def provenance(self) -> dict[str, str]:
        """Return the source of each reused result, for the run's record."""
        return {trial_id: f"{result.run_id}/{result.trial_id}" for trial_id, (result, _) in self.results.items()}


def find_reusable(
    settings: Settings,
    planned: Sequence[PlannedTrial],
    environments: Mapping[str, Mapping[str, Any]],
    inputs: Mapping[str, Any],
) -> Reuse:
    """Find a result for each planned trial, the newest first.

    `environments` are the present facts of each worker, `inputs` the digests of model and data there.
    """
    now = {
        name: {**facts, **{f"{part}_sha256": inputs[part]["sha256"] for part in ("model", "data")}}
        for name, facts in environments.items()
    }
    by_digest: dict[str, list[tuple[TrialResult, Path]]] = {}
    digests = {each.trial.digest() for each in planned}
    for result, folder in _earlier_results(settings.results_folder):
        if result.trial.digest() in digests:
            by_digest.setdefault(result.trial.digest(), []).append((result, folder))
    results: dict[str, tuple[TrialResult, Path]] = {}
    reasons: dict[str, str] = {}
    for each in planned:
        if not each.trial.workload.is_compared:
            reasons[each.trial_id] = f"trials of kind {each.trial.kind} are always measured"
            continue
        candidates = by_digest.get(each.trial.digest(), [])
        reason = NO_RESULT
        for position, (result, folder) in enumerate(candidates):
            if result.worker not in now or (each.worker is not None and result.worker != each.worker):
                continue
            difference = unusable_reason(result, _environment(folder), now[result.worker])
            if difference is None:
                results[each.trial_id] = candidates.pop(position)
                break
            reason = difference if reason == NO_RESULT else reason
        else:
            reasons[each.trial_id] = reason
    return Reuse(results=results, reasons=reasons)


def unusable_reason(result: TrialResult, environment: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return why a result cannot stand in on a worker with these facts; None if it can."""
    if result.status is not TrialStatus.SUCCEEDED:
        return f"the earlier result is {result.status.value}"
    if result.flags:
        return f"the earlier result is flagged: {result.flags[0]}"
    if not environment:
        return "the earlier result has no environment.json: it was not collected"
    then = {**environment, **result.fingerprint}
    for key, name in SAME_FACTS.items():
        is_known = then.get(key) is not None or key in ABSENT_FACTS
        if not is_known or then.get(key) != now.get(key):
            return f"{name}: {_short(then.get(key))} then, {_short(now.get(key))} now"
    for key, name in IMAGE_FACTS.items():
        if then.get(key) != now.get(key):
            return f"{name}: {_short(then.get(key))} then, {_short(now.get(key))} now"
    return _package_difference(then, now) or _variable_difference(then, now) or _gpu_difference(then, now)


def _package_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Compare the packages that the trial imported; all, if it does not say which."""
    before, after, imported = then.get("packages"), now.get("packages"), then.get("imported")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return "packages: unknown"
    names = imported if isinstance(imported, list) else sorted({*before, *after})
    changed = [str(name) for name in names if before.get(name) != after.get(name)]
    return None if not changed else f"{changed[0]}: {before.get(changed[0])} then, {after.get(changed[0])} now"


def _variable_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    before, after = (BENCH_VARIABLES | (facts.get("variables") or {}) for facts in (then, now))
    names = sorted({*before, *after} - {*PER_TRIAL_VARIABLES})
    changed = [name for name in names if before.get(name) != after.get(name)]
    return None if not changed else f"{changed[0]}: {before.get(changed[0])} then, {after.get(changed[0])} now"


def _gpu_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Compare the GPU that the trial ran on, by its UUID, with the worker's present GPUs."""
    before, after = (
        {gpu.get("uuid"): gpu for gpu in facts.get("gpus") or () if isinstance(gpu, Mapping)} for facts in (then, now)
    )
    if then.get("device") == "cpu":
        return None if not after else "GPU: none then"
    uuid = then.get("gpu_uuid") or (next(iter(before)) if len(before) == 1 else None)
    if uuid is None or uuid not in after or uuid not in before:
        return f"GPU: {_short(uuid)} then, {formatting.first_n([_short(each) for each in after], 2) or 'none'} now"
    changed = [name for name in GPU_SETTINGS if before[uuid].get(name) != after[uuid].get(name)]
    if changed:
        return f"GPU's {changed[0]}: {before[uuid].get(changed[0])} then, {after[uuid].get(changed[0])} now"
    return None


def _short(value: object) -> str:
    text = "unknown" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


def _earlier_results(results_folder: Path) -> Iterator[tuple[TrialResult, Path]]:
    """Yield the sealed results of all runs, the newest run first, without those that were reused themselves."""
    runs = sorted((folder for folder in results_folder.glob(f"*/{TRIALS_FOLDER}")), reverse=True)
    for folder in runs:
        if folder.parent.is_symlink() or folder.parent.name == LATEST or folder.is_symlink():
            continue
        for path in sorted(folder.glob(f"*/{RESULT_FILE}")):
            try:
                result = TrialResult.read(path)
            except ResultError:
                continue  # the report of its run lists it
            is_own = (result.run_id, result.trial_id) == (folder.parent.name, path.parent.name)
            if is_own and not path.parent.is_symlink() and result.reused_from is None:
                yield result, path.parent


def _environment(folder: Path) -> Mapping[str, Any]:
    """Read environment.json of a trial; {} if it is missing or invalid."""
    try:
        content = read_regular(folder / ENVIRONMENT_FILE, max_bytes=MAX_ENVIRONMENT_BYTES, follow=False)
        document = schema.parse(content)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_reused(reuse: Reuse, run: RunRecord, folder: Path, ledger: Ledger) -> None:
    """Write the reused results into a new run's folder and end their trials. Raises UsageError and LedgerError."""
    for trial_id, (result, source) in reuse.results.items():
        target = folder / TRIALS_FOLDER / trial_id
        marked = dataclasses.replace(
            result, trial_id=trial_id, run_id=run.run_id, reused_from=f"{result.run_id}/{result.trial_id}"
        )
        with results_write_errors(folder):
            target.mkdir(parents=True, exist_ok=True)
            for name in (ENVIRONMENT_FILE, TELEMETRY_FILE):
                if (source / name).is_file():
                    shutil.copyfile(source / name, target / name)
            marked.write(target)
        ledger.record_end(trial_id, Outcome(TrialStatus.SUCCEEDED, None, f"reused: {marked.reused_from}"))
