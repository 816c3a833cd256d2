"""Runs a plan over the fleet until every trial has its end. Shared by `inv bench` and `inv tune`.

The plan is on disk before anything starts; from then on its ledger says what is left to do.
"""

import contextlib
import dataclasses
import datetime
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.checkpoint_sync import CheckpointSync
from remote.fleet.events import FleetEvent
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Ledger, LedgerError
from remote.fleet.retry_policy import LoginTimeout, RetryLimits
from remote.hosts.host import Host
from remote.jobs.agent import Agent
from remote.jobs.job import slot_of
from reports import formatting
from tasks.cli.signals import interrupted_by
from tasks.clients.worker_queries import query_all
from tasks.clients.workers import cluster_location, crews, launcher
from tasks.errors import Interrupted, RetryableError, SomeTrialsFailed, one_line, writing
from tasks.fleet import plan
from tasks.fleet.live_display import LiveView
from tasks.fleet.pending_results import DISCARDED_FILE
from tasks.fleet.plan import expected_sec
from tasks.fleet.run_store import TRAIN, make_folder, open_run, point_latest_at, resume_command
from tasks.settings.load import Settings

# A command to a dead node ends after 15 s of silence, and the last one has to end within fleet.lost_after_sec.
ONE_TRY_SEC = {"local": 0.0, "pods": 15.0}
# A stream to a pod is a kubectl of 15 MB; more workers than this are looked at in turn.
STREAMS = {"local": 1024, "pods": 8}


def plan_of(
    settings: Settings, suite_name: str, trials: Sequence[Trial], hosts: Sequence[Host], *, inputs: Mapping[str, Any]
) -> RunRecord:
    """The run of these trials over these hosts, spread and repeated as the settings say. Starts nothing."""
    bench, names = settings.bench, [host.name for host in hosts]
    is_over_pods = settings.fleet.kind == "pods"
    planned = plan.plan_trials(trials, names, bench.spread, bench.repeats, is_over_pods=is_over_pods)
    return record_of(settings, suite_name, planned, names, inputs=inputs)


def record_of(
    settings: Settings,
    suite_name: str,
    planned: list[PlannedTrial],
    names: list[str],
    *,
    inputs: Mapping[str, Any],
) -> RunRecord:
    """The record of a new run over the workers of these names."""
    now = datetime.datetime.now(datetime.timezone.utc)
    cluster, is_over_pods = cluster_location(settings), settings.fleet.kind == "pods"
    # Jobs in pods are found by the run's id, so two operators who start in the same second need different ones.
    parts = [f"{now:%Y%m%d-%H%M%S}", suite_name, *([secrets.token_hex(3)] if is_over_pods else [])]
    return RunRecord(
        run_id="-".join(parts),
        created_at=now.isoformat(timespec="seconds"),
        suite=suite_name,
        profile=settings.bench.profile,
        spread=settings.bench.spread,
        fleet_kind=settings.fleet.kind,
        workers=names,
        planned=planned,
        settings=settings.public(),
        provenance={
            **plan.git_state(settings.root),
            "inputs": dict(inputs),
            **({"cluster": cluster} if cluster else {}),
        },
    )


def resume(settings: Settings, run_id: str, hosts: list[Host], *, plain: bool) -> None:
    """Resume a run: trials that need work are opened again, finished ones are not repeated."""
    run, folder = open_run(settings, run_id)
    trial_ids = [planned.trial_id for planned in run.planned]
    with ledger_errors(run.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, trial_ids)
        for trial_id in trial_ids:
            if ledger.needs_work(trial_id) and not ledger.is_open(trial_id):
                ledger.reopened(trial_id)
        if ledger.open_trials():
            work(settings, run, folder, ledger, hosts, plain=plain)
            return
        print(f"run {run.run_id}: nothing to resume")
        conclude(run, ledger, interrupted=False)


def refuse_busy_workers(settings: Settings, hosts: Sequence[Host]) -> None:
    """Raises Resumable where another run is working: a run whose operator is gone, or another operator's.

    Two runs on one worker would disturb each other's measurements. Two that start in the same moment may both pass
    here; their trials then take turns (`remote.fleet.retry_policy`).
    """
    holders = query_all(settings, hosts, lambda host: Agent(host).holder(slot_of(host)))
    jobs = {host.name: Path(holder) for host, holder in zip(hosts, holders, strict=True) if holder is not None}
    if not jobs:
        return
    name, job = next(iter(jobs.items()))
    run_id, count = job.parent.name, f" ({len(jobs)} of {len(hosts)} workers are busy)" if len(jobs) > 1 else ""
    busy = f"{name} is still busy with {job.name} of run {run_id}{count}"
    if (settings.results_folder / run_id / RUN_FILE).is_file():
        raise RetryableError(
            f"{busy}; `{resume_command(run_id)}` goes on with it, `inv cancel --run={run_id}` stops it"
        )
    raise RetryableError(
        f"{busy}, which is not in {settings.results_folder}: another operator's; `inv monitor` shows it; "
        "when it is done, or cancelled where it was started, type the same again"
    )


def write_plan(settings: Settings, run: RunRecord) -> tuple[RunRecord, Path, Ledger]:
    """Put the plan on disk before anything starts."""
    with writing(settings.results_folder):
        settings.results_folder.mkdir(parents=True, exist_ok=True)
        run_id, folder = make_folder(settings.results_folder, run.run_id)
        run = dataclasses.replace(run, run_id=run_id)
        run.write(folder)
        with ledger_errors(run_id):
            ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        point_latest_at(folder)
    return run, folder, ledger


def keep(folder: Path) -> None:
    """A run that is worked on is to be collected again, whatever was given up of it. Raises OSError."""
    (folder / DISCARDED_FILE).unlink(missing_ok=True)


def work(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger, hosts: list[Host], *, plain: bool) -> None:
    """Run the trials that are open in the ledger, with a live view, and conclude."""
    with ledger_errors(run.run_id):
        keep(folder)
    still_open = set(ledger.open_trials())
    view = LiveView(
        run_id=run.run_id,
        planned=[planned for planned in run.planned if planned.trial_id in still_open],
        workers=[host.name for host in hosts],
        expected_sec=expected_sec(settings, run),
        price_usd_per_gpu_hour=settings.cost.price_usd_per_gpu_hour,
        plain=plain,
    )
    was_stopped = False
    with ledger_errors(run.run_id), interrupted_by(signal.SIGTERM), view:
        try:
            for fleet in fleets_of(settings, run, folder, ledger, hosts, view.handle):
                if was_stopped:
                    fleet.stop()
                fleet.run()
                was_stopped = fleet.was_stopped
        except KeyboardInterrupt:
            raise Interrupted(
                f"run {run.run_id}: left at once, its trials go on; `inv bench --resume={run.run_id}` goes back to it"
            ) from None
    conclude(run, ledger, interrupted=was_stopped)


def fleets_of(
    settings: Settings,
    run: RunRecord,
    folder: Path,
    ledger: Ledger,
    hosts: list[Host],
    on_event: Callable[[FleetEvent], None] = lambda _: None,
    *,
    keeper: CheckpointSync | None = None,
) -> Iterator[Fleet]:
    """The run's fleets, to be run one after the other; `on_event` is told what happens."""
    strict = run.settings.get("bench", {}).get("strict", False)
    patience, attempts = settings.fleet.give_up_after_sec, settings.fleet.max_attempts
    if run.suite == TRAIN:
        patience, attempts = settings.train.wait, 1 + settings.train.max_restarts
    for crew in crews(settings, hosts, run):
        yield Fleet(
            hosts=crew.hosts,
            run=run,
            run_folder=folder,
            ledger=ledger,
            launch=launcher(settings, run.run_id, strict=strict),
            on_event=on_event,
            limits=RetryLimits(
                lost_after_sec=max(1.0, settings.fleet.lost_after_sec - ONE_TRY_SEC[settings.fleet.kind]),
                give_up_after_sec=patience,
                log_in_within_sec=settings.fleet.log_in_within_sec,
                max_attempts=attempts,
                streams=STREAMS[settings.fleet.kind],
            ),
            shared=settings.shared_results,
            agents=crew.agents,
            only=crew.trial_ids,
            keeper=keeper,
        )


def conclude(run: RunRecord, ledger: Ledger, *, interrupted: bool) -> None:
    ends = Counter(entry.end for entry in ledger.entries.values() if entry.end is not None)
    total = len(ledger.entries)
    tally = ", ".join(f"{count} {end.value}" for end, count in ends.most_common())
    if interrupted:
        raise Interrupted(f"run {run.run_id}: interrupted: {tally}; `inv bench --resume={run.run_id}` goes on with it")
    if ends[TrialStatus.SUCCEEDED] == total:
        print(f"run {run.run_id}: {'the trial' if total == 1 else f'all {total} trials'} SUCCEEDED")
        return
    for reason, count in Counter(
        entry.reason for entry in ledger.entries.values() if entry.end is TrialStatus.LOST
    ).most_common(5):
        print(f"LOST: {formatting.count(count, 'trial')}: {one_line(reason or 'no reason is known')}")
    again = any(end.is_resumable for end in ends)
    advice = f"; `inv bench --resume={run.run_id}` runs the PREEMPTED, LOST and CANCELLED ones again" if again else ""
    raise SomeTrialsFailed(f"run {run.run_id}: {tally} of {total}{advice}")


@contextlib.contextmanager
def ledger_errors(run_id: str) -> Iterator[None]:
    try:
        yield
    except LoginTimeout as error:
        raise RetryableError(
            f"{error}; what runs on the workers goes on: log in, then type `{resume_command(run_id)}`"
        ) from None
    except (LedgerError, OSError) as error:
        raise RetryableError(
            f"{error}; what runs on the workers goes on: repair that, then type `{resume_command(run_id)}`"
        ) from None
