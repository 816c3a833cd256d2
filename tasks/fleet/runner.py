"""Execution of a plan over the fleet until every trial has ended, for `inv bench`; the plan on disk.

The plan is on disk before anything starts; afterwards its ledger says what is left to do.
"""

import contextlib
import dataclasses
import functools
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from remote.fleet.events import FleetEvent
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Ledger, LedgerError
from remote.fleet.retry_policy import LoginTimeout
from remote.hosts.host_protocol import Host
from remote.jobs.job import Agent, slot_path
from reports import formatting
from tasks.cli.log import open_run_log
from tasks.cli.signals import as_ctrl_c
from tasks.clients.worker_queries import query_all
from tasks.clients.workers import BenchProgram, PodDiagnosis, worker_groups
from tasks.errors import Interrupted, RetryableError, SomeTrialsFailed, escape_controls, results_write_errors
from tasks.fleet.live_display import FleetView
from tasks.fleet.pending_results import DISCARDED_FILE
from tasks.fleet.plan import FleetPlan
from tasks.fleet.run_store import (
    count_statuses,
    format_statuses,
    make_folder,
    point_latest_at,
    refuse_copied_latest,
    resume_command,
)


def act(plan: FleetPlan) -> None:
    """Run a plan's trials that have not succeeded."""
    run = plan.run
    trial_ids = [planned.trial_id for planned in run.planned]
    with ledger_errors(run.run_id):
        ledger = Ledger.create(plan.folder / LEDGER_FILE, trial_ids)
        for trial_id in trial_ids:
            if ledger.entries[trial_id].status not in (None, TrialStatus.SUCCEEDED):
                ledger.reopen(trial_id)
        if ledger.open_trials():
            clear_discarded(plan.folder)
            run_trials(plan, ledger)
            return
        print(f"run {run.run_id}: nothing to resume")
        report_outcome(run, ledger, interrupted=False)


def refuse_busy_workers(results_folder: Path, program: BenchProgram, hosts: Sequence[Host]) -> None:
    """Raise RetryableError if a worker is busy with another run, abandoned or another operator's.

    Two runs on one worker would disturb each other's measurements. Two runs that start at the same time may both pass
    this check; their trials then take turns (`remote.fleet.retry_policy`).
    """
    holders = query_all(hosts, lambda host: Agent(host).holder(slot_path(host)), program.lost_after_sec)
    jobs = {host.name: Path(holder) for host, holder in zip(hosts, holders, strict=True) if holder is not None}
    if not jobs:
        return
    name, job = next(iter(jobs.items()))
    run_id, count = job.parent.name, f" ({len(jobs)} of {len(hosts)} workers are busy)" if len(jobs) > 1 else ""
    busy = f"{name} is still busy with {job.name} of run {run_id}{count}"
    if (results_folder / run_id / RUN_FILE).is_file():
        raise RetryableError(
            busy, remedy=f"`{resume_command(run_id)}` resumes it, `inv cancel --run={run_id}` stops it"
        )
    raise RetryableError(
        f"{busy}, which is another operator's, as it is not in {results_folder}",
        remedy="watch it with `inv monitor`, and rerun the command when it has ended",
    )


def write_plan(results_folder: Path, run: RunRecord, *, is_newest: bool = True) -> RunRecord:
    """Write the plan and an empty ledger to a new run folder. Returns the run with its final id. Raises UsageError.

    With `is_newest`, a command without an id means this run from now on.
    """
    refuse_copied_latest(results_folder)
    with results_write_errors(results_folder):
        results_folder.mkdir(parents=True, exist_ok=True)
        run_id, folder = make_folder(results_folder, run.run_id)
        open_run_log(folder)
        run = dataclasses.replace(run, run_id=run_id)
        run.write(folder)
        with ledger_errors(run_id):
            Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        if is_newest:
            point_latest_at(folder)
    return run


def clear_discarded(folder: Path) -> None:
    """Unmark a run as discarded, because it is active again and must be collected. Raises OSError."""
    (folder / DISCARDED_FILE).unlink(missing_ok=True)


def run_trials(plan: FleetPlan, ledger: Ledger) -> None:
    """Run the ledger's open trials with a live view, then report the outcome. Raises LedgerError and LoginTimeout."""
    run, still_open = plan.run, set(ledger.open_trials())
    view = FleetView(
        run_id=run.run_id,
        planned=[planned for planned in run.planned if planned.trial_id in still_open],
        workers=[host.name for host in plan.hosts],
    )
    was_stopped = False
    with as_ctrl_c(signal.SIGTERM), view:
        try:
            for fleet in make_fleets(plan, ledger, view.handle):
                if was_stopped:
                    fleet.stop()
                fleet.run()
                was_stopped = fleet.was_stopped
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"run {run.run_id}: detached, its trials continue",
                remedy=f"reattach with `inv bench --resume={run.run_id}`",
            ) from error
    report_outcome(run, ledger, interrupted=was_stopped)


def make_fleets(
    plan: FleetPlan, ledger: Ledger, on_event: Callable[[FleetEvent], None] = lambda _: None
) -> Iterator[Fleet]:
    """Yield the plan's fleets, to be run one after the other. `on_event` gets every event."""
    diagnosis = PodDiagnosis(plan.target)
    for hosts, make_agent, trial_ids in worker_groups(plan.run, plan.hosts):
        yield Fleet(
            hosts=hosts,
            run=plan.run,
            run_folder=plan.folder,
            ledger=ledger,
            make_command=functools.partial(plan.program.trial_command, plan.run),
            on_event=on_event,
            limits=plan.limits,
            shared_folder=plan.program.shared,
            make_agent=make_agent,
            trial_ids=trial_ids,
            diagnose=diagnosis.read,
        )


def report_outcome(run: RunRecord, ledger: Ledger, *, interrupted: bool) -> None:
    """Print the outcome if every trial succeeded. Otherwise raise Interrupted or SomeTrialsFailed."""
    entries, remedy = list(ledger.entries.values()), f"`{resume_command(run.run_id)}` tries what did not succeed again"
    summary = f"run {run.run_id}: {format_statuses(count_statuses(entries), len(entries))}"
    if interrupted:
        raise Interrupted(f"{summary}; interrupted", remedy=remedy)
    if all(entry.status is TrialStatus.SUCCEEDED for entry in entries):
        print(summary)
        return
    lost = Counter(entry.reason for entry in entries if entry.status is TrialStatus.LOST)
    for reason, count in lost.most_common(5):
        print(f"LOST: {formatting.count(count, 'trial')}: {escape_controls(reason or 'unknown reason')}")
    raise SomeTrialsFailed(summary, remedy=remedy)


@contextlib.contextmanager
def ledger_errors(run_id: str) -> Iterator[None]:
    """Translate errors of login, ledger and file system to RetryableError with the command that resumes the run."""
    try:
        yield
    except LoginTimeout as error:
        raise RetryableError.from_error(
            error, remedy=f"jobs on the workers continue: log in, then run `{resume_command(run_id)}`"
        ) from error
    except (LedgerError, OSError) as error:
        raise RetryableError.from_error(
            error, remedy=f"jobs on the workers continue: fix that, then run `{resume_command(run_id)}`"
        ) from error
