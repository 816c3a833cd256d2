"""Planning of a run: a request of trials becomes a record, and that a plan, which is run without the settings.

Pure, except for reading git.
"""

import dataclasses
import datetime
import itertools
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial, TrialError, choose, schema, suite
from bench.records import read_trials as bench_trials
from bench.records.atomic_files import read_regular
from bench.records.run import REPEATS, PlannedTrial, RunRecord
from bench.records.training import DerivedSettings
from bench.records.trial import MAX_BYTES
from remote.cluster.kubeconfig import Target
from remote.fleet.retry_policy import RetryLimits
from remote.hosts.host_protocol import Host
from remote.hosts.local import run_git
from tasks.clients.target_cluster import resolve_target
from tasks.clients.workers import BenchProgram, bench_program, cluster_location
from tasks.errors import UsageError, file_errors, translate_errors
from tasks.fleet.declared import data_options, with_training_configuration
from tasks.settings.layers import Settings
from tasks.settings.sources import display_path


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Trials of a suite, each on every worker. `quality`: compare held-out losses after them."""

    suite: str
    trials: Sequence[Trial]
    workers: Sequence[str]
    repeats: int = 1
    quality: bool = False


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A run over a fleet with all that running it takes. `target` is the cluster of its pods, None without one."""

    run: RunRecord
    folder: Path
    hosts: Sequence[Host]
    program: BenchProgram
    limits: RetryLimits
    target: Target | None


def new_record(
    settings: Settings,
    suite_name: str,
    planned: Sequence[PlannedTrial],
    workers: Sequence[str],
    *,
    inputs: Mapping[str, Any],
    bench: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Create the record of a new run; `bench` replaces values of section bench there."""
    now = datetime.datetime.now(datetime.timezone.utc)
    cluster, is_over_pods, document = cluster_location(settings), settings.connector.is_cluster, settings.public()
    document["bench"] |= bench or {}
    # Jobs in pods are found by run id, so runs that two operators start in the same second need different ids.
    parts = [f"{now:%Y%m%d-%H%M%S}", suite_name, *([secrets.token_hex(3)] if is_over_pods else [])]
    return RunRecord(
        run_id="-".join(parts),
        created_at=now.isoformat(timespec="seconds"),
        suite=suite_name,
        profile=settings.bench.profile,
        fleet_kind=settings.fleet.kind,
        is_on_one_machine=settings.connector.is_local,
        workers=list(workers),
        planned=list(planned),
        settings=document,
        provenance={
            **git_state(settings.root),
            "inputs": dict(inputs),
            **({"cluster": cluster} if cluster else {}),
        },
    )


def plan_run(settings: Settings, request: BenchRequest, inputs: Mapping[str, Any]) -> RunRecord:
    """Return the record of the request's run. Raises UsageError if there are too few workers."""
    bench = {name: getattr(request, name) for name in ("repeats", "quality")}
    run = new_record(settings, request.suite, [], request.workers, inputs=inputs, bench=bench)
    is_over_pods = settings.connector.is_cluster
    planned = plan_trials(request.trials, request.workers, request.repeats, is_over_pods=is_over_pods, seed=run.run_id)
    return dataclasses.replace(run, planned=planned)


def plan_fleet(settings: Settings, run: RunRecord, folder: Path, hosts: Sequence[Host]) -> FleetPlan:
    """Return the plan of running this record, in its folder, over these hosts."""
    fleet, connector = settings.fleet, settings.connector
    return FleetPlan(
        run=run,
        folder=folder,
        hosts=hosts,
        program=bench_program(settings),
        limits=RetryLimits(
            # The last command to a dead host must end within fleet.lost_after_sec.
            lost_after_sec=max(1.0, fleet.lost_after_sec - connector.silence_sec),
            reconnect_timeout_sec=fleet.reconnect_timeout_sec,
            login_timeout_sec=fleet.login_timeout_sec,
            max_attempts=fleet.max_attempts,
            max_streams=connector.max_streams,
        ),
        target=resolve_target(settings) if connector.is_cluster else None,
    )


_OVERRIDABLE_FIELDS = ("deadline_sec", "warmup_steps", "measured_steps", "learning_rate")


def choose_trials(settings: Settings, suite_name: str, only: Sequence[str] | None) -> tuple[Trial, ...]:
    """Return the suite's trials at the configured profile; `only` selects trial ids. Raises UsageError."""
    bench = settings.bench
    overrides = {name: getattr(bench, name) for name in _OVERRIDABLE_FIELDS if getattr(bench, name) is not None}
    options = data_options(settings)
    with translate_errors(UsageError, TrialError, prefix="bench: "):
        trials = tuple(
            dataclasses.replace(trial, seed=bench.seed, data_options=options, **overrides)
            for trial in suite(suite_name, bench.profile, settings.model.path, settings.data.path)
        )
        chosen = trials if only is None else choose(trials, tuple(only))
    return tuple(with_training_configuration(settings, trial) if trial.is_usual else trial for trial in chosen)


def with_derived(trials: Sequence[Trial], inputs: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Return the trials with the values that a worker derived for their open fields."""
    return tuple(
        trial.with_derived(schema.from_json(DerivedSettings, inputs["derived"][trial.trial_id]))
        if trial.derive
        else trial
        for trial in trials
    )


def read_trials(settings: Settings, file: str, only: Sequence[str] | None) -> tuple[Trial, ...]:
    """Read trials from a file; those without data options have those of the settings.

    Raises UsageError, which names the flag.
    """
    flag = "bench: --trial-file"
    path = settings.resolve_typed_path(file)
    with file_errors(f"{flag}: {display_path(path)}: cannot be read"):
        text = read_regular(path, max_bytes=MAX_BYTES).decode("utf-8-sig")
    with translate_errors(UsageError, TrialError, prefix=f"{flag}: "):
        trials = bench_trials(text, file)
        profiles = sorted({trial.profile for trial in trials})
        if profiles != [settings.bench.profile]:
            raise UsageError(
                f"{file}: profile {' and '.join(profiles)}, but bench.profile is {settings.bench.profile}",
                remedy="one run has one profile: change the setting or the file",
            )
        trials = tuple(with_data_options(settings, trial) for trial in trials)
        return trials if only is None else choose(trials, tuple(only))


def with_data_options(settings: Settings, trial: Trial) -> Trial:
    """Return the trial with the data options of the settings, unless it has its own."""
    has_own = trial.training is not None or trial.data_options is not None
    return trial if has_own else dataclasses.replace(trial, data_options=data_options(settings))


def input_trial(settings: Settings) -> Trial:
    """Return a trial that reads model.path and data.path as a benchmark does, to check them."""
    return Trial(
        name="inputs",
        reason="a check of model and data",
        suite="inputs",
        profile=settings.bench.profile,
        model=settings.model.path,
        data=settings.data.path,
        max_seq_len=8,
        micro_batch_size=1,
        data_options=data_options(settings),
    )


def plan_trials(
    trials: Sequence[Trial],
    workers: Sequence[str],
    repeats: int = 1,
    *,
    is_over_pods: bool = False,
    seed: str = "",
) -> list[PlannedTrial]:
    """Plan each trial on every worker.

    Each repeat is a process of its own. One round of all trials ends before the next begins. On worker i of W, round r
    begins with trial floor(i C / W) + r - 1 (mod C) of the C trials, and the others follow in an order drawn from
    `seed`: so a change of the machines (heat, a neighbour) does not pass for a difference between trials. The first
    worker's first round keeps the suite's order. Over pods a distributed trial occupies several workers at once and is
    planned once a round, for the first worker. Raises UsageError if there are too few workers.
    """
    planned = []
    for repeat, (index, worker) in itertools.product(range(1, repeats + 1), enumerate(workers)):
        first = (index * len(trials) // len(workers) + repeat - 1) % len(trials)
        others = [*trials[first + 1 :], *trials[:first]]
        if (index, repeat) != (0, 1):
            random.Random(f"{seed} {repeat} {index}").shuffle(others)  # noqa: S311 - a reproducible order, not a secret
        for trial in (trials[first], *others):
            spans_pods = is_over_pods and trial.workload.is_ranked
            if spans_pods and trial.world_size > len(workers):
                raise UsageError(
                    f"fleet.size: {trial.trial_id} has {trial.world_size} ranks, one in each pod, and the fleet has "
                    f"{len(workers)} pods",
                    remedy="leave it out with --only, or raise fleet.size and run `inv deploy`",
                )
            if spans_pods and index > 0:
                continue
            parts = [trial.trial_id, *([] if spans_pods else [worker]), *([f"r{repeat}"] if repeats > 1 else [])]
            planned.append(PlannedTrial(trial_id=".".join(parts), trial=trial, worker=worker))
    return planned


def divide_trials(trials: Sequence[Trial], workers: Sequence[str]) -> list[PlannedTrial]:
    """Plan each trial once, on the workers in turn."""
    pairs = zip(trials, itertools.cycle(workers), strict=False)
    return [PlannedTrial(trial_id=trial.trial_id, trial=trial, worker=worker) for trial, worker in pairs]


def default_repeats(trials: Sequence[Trial], workers: int) -> int:
    """Return how often each trial runs: more than once where a single worker compares configurations.

    One process of each cannot tell a difference from a machine that changed, in whatever order.
    """
    is_comparison = sum(trial.workload.is_compared for trial in trials) > 1
    return REPEATS if workers == 1 and is_comparison else 1


def git_state(root: Path) -> dict[str, Any]:
    """Return the project's commit and whether the tree differs from it; both None without a repository."""
    sha, changes = run_git(root, "rev-parse", "HEAD"), run_git(root, "status", "--porcelain")
    is_known = sha is not None and changes is not None
    return {"git_sha": sha if is_known else None, "git_dirty": changes != "" if is_known else None}
