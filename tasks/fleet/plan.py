"""From settings to a plan: which trials, on which workers, for how long. Pure, but it reads git and old runs."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.records import Trial, TrialError, choose, suite
from bench.records import read_trials as bench_trials
from bench.records.atomic_files import read_regular
from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial, RunRecord
from bench.records.trial import MOST_BYTES
from tasks.cli.git import git
from tasks.errors import UsageError, file_errors, translate_errors
from tasks.fleet.run_store import newest_results
from tasks.settings.load import Settings
from tasks.settings.sources import shown

KINDS_WITH_STEPS = ("training", "distributed")
_CHANGEABLE = ("deadline_sec", "warmup_steps", "measured_steps", "learning_rate")


def choose_trials(settings: Settings, suite_name: str, only: Sequence[str] | None) -> tuple[Trial, ...]:
    """The suite's trials at the settings' profile; `only` narrows them to these ids. Raises UsageError."""
    bench = settings.bench
    changed = {name: getattr(bench, name) for name in _CHANGEABLE if getattr(bench, name) is not None}
    with translate_errors(UsageError, TrialError, before="bench: "):
        trials = tuple(
            dataclasses.replace(trial, seed=bench.seed, **changed)
            for trial in suite(suite_name, bench.profile, settings.model.path, settings.data.path)
        )
        return trials if only is None else choose(trials, tuple(only))


def read_trials(
    settings: Settings, file: str, only: Sequence[str] | None, *, flag: str = "bench: --trials"
) -> tuple[Trial, ...]:
    """The trials of a file. Raises UsageError, which names the flag."""
    path = settings.typed(file)
    with file_errors(f"{flag}: {shown(path)}: cannot be read"):
        text = read_regular(path, most_bytes=MOST_BYTES).decode("utf-8")
    with translate_errors(UsageError, TrialError, before=f"{flag}: "):
        trials = bench_trials(text, file)
        profiles = sorted({trial.profile for trial in trials})
        if profiles != [settings.bench.profile]:
            raise UsageError(
                f"{file}: profile {' and '.join(profiles)}, but bench.profile is {settings.bench.profile}; "
                "one run has one profile: change the setting or the file"
            )
        return trials if only is None else choose(trials, tuple(only))


def size_of(trial: Trial) -> str:
    """A trial's size in a few characters: sequence x batch (x ranks), of an inference prompt + answer x largest batch,
    of a loading the base's precision."""
    if trial.kind == "hardware":
        return "-"
    if trial.kind == "loading":
        return trial.base_precision
    if trial.kind == "inference":
        return f"{trial.max_seq_len} + {trial.new_tokens} x {trial.micro_batch_size}"
    ranks = f" x {trial.world_size}" if trial.kind == "distributed" else ""
    return f"{trial.max_seq_len} x {trial.micro_batch_size}{ranks}"


def steps_of(trial: Trial) -> str:
    """Warm-up and measured steps of a trial that trains; the others have none."""
    return f"{trial.warmup_steps} + {trial.measured_steps}" if trial.kind in KINDS_WITH_STEPS else "-"


def plan_trials(
    trials: Sequence[Trial],
    workers: Sequence[str],
    spread: str,
    repeats: int = 1,
    *,
    is_over_pods: bool = False,
) -> list[PlannedTrial]:
    """replicate: every trial on each worker; shard: every trial once, on any idle worker; all `repeats` times.

    Each repeat is a process of its own. One round of all trials ends before the next begins, so that slow changes
    (heat, a neighbour) affect all configurations alike. Where rounds would give a trial the same worker each time, each
    round begins one trial later: one worker alone says nothing of how workers differ. Over pods a distributed trial
    takes several workers at once and runs once a round, with either `spread`. Raises UsageError where there are too few
    workers.
    """
    planned = []
    falls_alike = spread == "shard" and len(workers) > 1 and len(trials) % len(workers) == 0
    for turn in range(1, repeats + 1):
        first = (turn - 1) % len(trials) if falls_alike else 0
        for trial in (*trials[first:], *trials[:first]):
            together = is_over_pods and trial.kind == "distributed"
            if together and trial.world_size > len(workers):
                raise UsageError(
                    f"fleet.size: {trial.trial_id} has {trial.world_size} ranks, one in each pod, and the fleet has "
                    f"{len(workers)} pods; leave it out with --only, or raise fleet.size and type `inv deploy`"
                )
            places: Sequence[str | None] = [None] if spread == "shard" or together else workers
            for worker in places:
                parts = [trial.trial_id, *([] if worker is None else [worker]), *([f"r{turn}"] if repeats > 1 else [])]
                planned.append(PlannedTrial(trial_id=".".join(parts), trial=trial, worker=worker))
    return planned


def git_state(root: Path) -> dict[str, Any]:
    """The project's commit and whether the tree differs from it; both None where there is no repository."""
    sha, changes = git(root, "rev-parse", "HEAD"), git(root, "status", "--porcelain")
    is_known = sha is not None and changes is not None
    return {"git_sha": sha if is_known else None, "git_dirty": changes != "" if is_known else None}


def expected_sec(settings: Settings, run: RunRecord) -> dict[str, float | None]:
    """How long each planned trial took, in seconds, when the same configuration last succeeded here; None where it
    never has. Where this machine's cores are shared by more or fewer workers than then, in proportion.
    """
    wanted = {planned.trial.digest() for planned in run.planned}
    known: dict[str, float] = {}
    for results in newest_results(settings.results_folder):
        taken: dict[str, list[float]] = {}
        for result in results:
            if result.status is TrialStatus.SUCCEEDED and result.wall_time_sec is not None:
                taken.setdefault(result.trial.digest(), []).append(result.wall_time_sec)
        then = _crowding(settings, len({result.worker for result in results}))
        for digest, times in taken.items():
            known.setdefault(digest, max(times) / then)
        if wanted <= known.keys():
            break
    now = _crowding(settings, min(len(run.workers), len(run.planned)))
    alone = {planned.trial_id: known.get(planned.trial.digest()) for planned in run.planned}
    return {trial_id: None if sec is None else sec * now for trial_id, sec in alone.items()}


def _crowding(settings: Settings, workers: int) -> float:
    """How many threads of `workers` that work at once share a core, at least 1. Not counted: pods have cores of their
    own, and a GPU does the work of the profile gpu.
    """
    if settings.fleet.kind != "local" or settings.bench.profile != "tiny":
        return 1.0
    return max(1.0, workers * settings.fleet.local.threads / (os.cpu_count() or 1))


def expected_total_sec(run: RunRecord, each: Mapping[str, float | None]) -> float | None:
    """The run's expected length in seconds; None where a trial's own is unknown.

    Each trial goes to its own worker, or to the one that is idle first. Those that take several pods at once come after
    all others, one after the other.
    """
    busy, together = dict.fromkeys(run.workers, 0.0), 0.0
    for planned in run.planned:
        sec = each[planned.trial_id]
        if sec is None:
            return None
        if run.fleet_kind == "pods" and planned.trial.kind == "distributed":
            together += sec
        else:
            busy[planned.worker or min(busy, key=lambda worker: busy[worker])] += sec
    return max(busy.values()) + together
