"""`inv bench` and `inv cancel`: a suite of trials over the fleet, to its last end, whatever happens on the way.

Observe (settings, workers, their model and data), plan (a RunRecord, which `--dry-run` prints), act (the fleet),
observe again (the ledger). What it knows of the workers it knows through `tasks.workers` alone.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import Interrupted, Refused, Resumable, SomeTrialsFailed, UsageError

if TYPE_CHECKING:
    from bench.result import RunRecord
    from remote.fleet import Fleet
    from remote.host import Host
    from remote.ledger import Ledger
    from tasks.settings import Settings


# A try that a dead node answers with silence takes 15 s, and the last one has to end within fleet.lost_after_sec.
ONE_TRY_SEC = {"local": 0.0, "pods": 15.0}


@task(
    optional=["resume"],
    help={
        "quick": "run the suite quick: 2 trials, the published baseline and optimum",
        "full": "run the suite full: 12 trials, one factor at a time",
        "only": "run these trials of the suite alone: ids separated by commas (`python -m bench list` shows them)",
        "suite": "run this suite: quick, full, hardware, loading, inference, distributed or all (default: bench.suite)",
        "spread": "replicate: every trial on every worker; shard: every trial once (default: bench.spread)",
        "resume": "go on with the newest run, or with the run of this id; finished trials are not repeated",
        "dry-run": "print the plan that would run, and touch nothing",
        "plain": "plain lines instead of the live table, also on a terminal",
    },
)
def bench(
    context: Context,
    quick: bool = False,
    full: bool = False,
    only: str | None = None,
    spread: str | None = None,
    suite: str | None = None,
    resume: str | None = None,
    dry_run: bool = False,
    plain: bool = False,
) -> None:
    """Run a suite of trials over the fleet, or --resume a run."""
    from bench.trial import SUITES
    from tasks import settings as house
    from tasks.lock import only_one

    settings = house.load(context)
    asked = [name for name, given in (("--quick", quick), ("--full", full), ("--suite", suite is not None)) if given]
    if len(asked) > 1:
        raise UsageError(f"bench: {' and '.join(asked)} exclude each other; give one of them")
    if resume and (asked or only is not None or spread is not None):
        raise UsageError(
            "bench: --resume goes on with a run's own plan; leave out --quick, --full, --suite, --only and --spread"
        )
    if suite is not None and suite not in SUITES:
        raise UsageError(f"bench: --suite: expected one of {', '.join(SUITES)}, found {suite!r}")
    if spread not in (None, "replicate", "shard"):
        raise UsageError(f"bench: --spread: expected replicate or shard, found {spread!r}")
    if resume:
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        _resume(settings, name, dry_run=dry_run, plain=plain)
        return
    suite_name = "quick" if quick else "full" if full else suite or settings.bench.suite
    run, hosts = _plan(settings, suite_name, only, spread or settings.bench.spread)
    if dry_run:
        _print_plan(settings, run)
        return
    with only_one(settings.results_folder, f"bench (run {run.run_id})"):
        _refuse_busy_workers(hosts)
        run, folder, ledger = _write_plan(settings, run)
        _work(settings, run, folder, ledger, hosts, plain=plain)


@task(help={"run": "the run's id (default: the newest run)"})
def cancel(context: Context, run: str | None = None) -> None:
    """Stop what an abandoned run still has running on the workers."""
    from remote.ledger import LEDGER_FILE, Ledger
    from tasks import settings as house
    from tasks.lock import only_one
    from tasks.runs import find_run, read_run
    from tasks.workers import refuse_other_fleet, workers

    settings = house.load(context)
    folder = find_run(settings.results_folder, run)
    record = read_run(folder)
    refuse_other_fleet(settings, record)
    with only_one(settings.results_folder, f"cancel (run {record.run_id})"), _ledger_errors(record.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in record.planned])
        if not ledger.open_trials():
            print(f"run {record.run_id}: nothing to cancel, every trial has its end")
            return
        for fleet in _fleets(settings, record, folder, ledger, workers(settings), None):
            fleet.stop()
            fleet.run()
        print(f"run {record.run_id}: cancelled; `inv bench --resume={record.run_id}` goes on with it")


def _plan(settings: Settings, suite_name: str, only: str | None, spread: str) -> tuple[RunRecord, list[Host]]:
    from remote.host import HostError
    from remote.pods import ClusterRefused
    from tasks import plan
    from tasks.workers import inspect, where, workers

    if only is None:
        chosen = settings.bench.only or None
    else:
        chosen = tuple(name.strip() for name in only.split(",") if name.strip())
    trials = plan.choose_trials(settings, suite_name, chosen)
    hosts = workers(settings)
    try:
        inputs = _agreed(inspect(settings, hosts))
    except ClusterRefused as error:
        raise UsageError(str(error)) from None
    except HostError as error:
        raise Resumable(f"{error}; see that the workers are up, then type the same again") from None
    names = [host.name for host in hosts]
    run = plan.make_run(
        settings,
        suite_name=suite_name,
        spread=spread,
        planned=plan.plan_trials(trials, names, spread, is_over_pods=settings.fleet.kind == "pods"),
        workers=names,
        inputs=inputs,
        cluster=where(settings),
        now=datetime.datetime.now(datetime.timezone.utc),
    )
    return run, hosts


def _agreed(answers: Mapping[str, Mapping[str, Any] | str]) -> Mapping[str, Any]:
    """What all workers said of model and data. Raises where one complains, or where they do not have the same."""
    for worker, answer in answers.items():
        if isinstance(answer, str):
            raise UsageError(f"{worker}: {answer}")
    (first, said), *others = [(worker, answer) for worker, answer in answers.items() if isinstance(answer, Mapping)]
    for worker, answer in others:
        for what in ("model", "data"):
            if answer[what]["sha256"] != said[what]["sha256"]:
                raise Refused(
                    f"{worker} and {first} have different files at {what}.path: {said[what]['path']}; "
                    "their results could not be compared; make them the same, then type the same again"
                )
    return said


def _print_plan(settings: Settings, run: RunRecord) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tasks.liveview import duration
    from tasks.plan import expected_sec, expected_total_sec, size_of, steps_of

    each = expected_sec(settings.results_folder, run.planned)
    console = Console()
    console.print(
        f"plan: suite {run.suite}, profile {run.profile}, {len(run.planned)} trials "
        f"({run.spread}) over {len(run.workers)} workers of kind {run.fleet_kind}",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    is_mixed = any(planned.trial.kind != "training" for planned in run.planned)
    heads = (
        ("trial", "kind", "size", "steps", "expected") if is_mixed else ("trial", "seq x batch", "steps", "expected")
    )
    for head in heads:
        table.add_column(head, no_wrap=True)
    table.add_column("why")
    # A replicated trial is one line: the plan holds it once for each worker, with nothing else different.
    for planned in {planned.trial.trial_id: planned for planned in run.planned}.values():
        trial, expected = planned.trial, each[planned.trial_id]
        table.add_row(
            Text(trial.trial_id),
            *([trial.kind] if is_mixed else []),
            size_of(trial),
            steps_of(trial),
            "-" if expected is None else duration(expected),
            Text(trial.reason),
        )
    console.print(table)
    console.print(f"on {', '.join(run.workers)}", markup=False)
    total = expected_total_sec(run.planned, len(run.workers), each)
    took = "unknown: not every trial has run here before" if total is None else f"about {duration(total)}"
    console.print(f"expected time: {took}; nothing was touched", markup=False)


def _refuse_busy_workers(hosts: Sequence[Host]) -> None:
    """A run whose operator is gone may still be working; two runs on one worker would measure each other."""
    from remote.agent import Agent
    from remote.host import HostError
    from remote.job import slot_holder, slot_of

    for host in hosts:
        try:
            holder = slot_holder(Agent(host), slot_of(host))
        except HostError as error:
            raise Resumable(f"{error}; see that the worker is up, then type the same again") from None
        if holder is not None:
            job = Path(holder)
            raise Resumable(
                f"{host.name} is still busy with {job.name} of run {job.parent.name}; type "
                f"`inv bench --resume={job.parent.name}` to go on with it, or `inv cancel --run={job.parent.name}`"
            )


def _write_plan(settings: Settings, run: RunRecord) -> tuple[RunRecord, Path, Ledger]:
    """Put the plan on disk before anything starts."""
    import dataclasses

    from remote.ledger import LEDGER_FILE, Ledger
    from tasks.runs import make_folder, point_latest_at

    try:
        run_id, folder = make_folder(settings.results_folder, run.run_id)
        run = dataclasses.replace(run, run_id=run_id)
        run.write(folder)
        with _ledger_errors(run_id):
            ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        point_latest_at(folder)
    except OSError as error:
        raise UsageError(f"results.folder: {settings.results_folder}: cannot be written: {error.strerror}") from None
    return run, folder, ledger


def _resume(settings: Settings, name: str | None, *, dry_run: bool, plain: bool) -> None:
    from remote.ledger import LEDGER_FILE, Ledger
    from tasks.lock import only_one
    from tasks.runs import find_run, read_run
    from tasks.workers import refuse_other_fleet, workers

    folder = find_run(settings.results_folder, name)
    run = read_run(folder)
    refuse_other_fleet(settings, run)
    trial_ids = [planned.trial_id for planned in run.planned]
    with _ledger_errors(run.run_id):
        if dry_run:
            seen = Ledger(folder / LEDGER_FILE)
            again = [trial_id for trial_id in trial_ids if seen.needs_work(trial_id)]
            print(f"run {run.run_id}: {len(trial_ids) - len(again)} of {len(trial_ids)} trials are done")
            print("would go on with:", ", ".join(again) or "nothing")
            return
        with only_one(settings.results_folder, f"bench --resume (run {run.run_id})"):
            ledger = Ledger.create(folder / LEDGER_FILE, trial_ids)
            for trial_id in trial_ids:
                if ledger.needs_work(trial_id) and not ledger.is_open(trial_id):
                    ledger.reopened(trial_id)
            if ledger.open_trials():
                _work(settings, run, folder, ledger, workers(settings), plain=plain)
                return
            print(f"run {run.run_id}: nothing to resume")
            _conclude(run, ledger, interrupted=False)


def _work(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger, hosts: list[Host], *, plain: bool) -> None:
    """Run what is open in the ledger, with a live view, and say how it ended."""
    from tasks.liveview import LiveView
    from tasks.plan import expected_sec

    still_open = set(ledger.open_trials())
    view = LiveView(
        run_id=run.run_id,
        planned=[planned for planned in run.planned if planned.trial_id in still_open],
        workers=[host.name for host in hosts],
        expected_sec=expected_sec(settings.results_folder, run.planned),
        price_usd_per_gpu_hour=settings.cost.price_usd_per_gpu_hour,
        plain=plain,
    )
    was_stopped = False
    with _ledger_errors(run.run_id), _terminated_like_ctrl_c(), view:
        try:
            for fleet in _fleets(settings, run, folder, ledger, hosts, view):
                if was_stopped:
                    fleet.stop()
                fleet.run()
                was_stopped = fleet.was_stopped
        except KeyboardInterrupt:
            raise Interrupted(
                f"run {run.run_id}: left at once; what runs goes on; `inv bench --resume={run.run_id}` goes back to it"
            ) from None
    _conclude(run, ledger, interrupted=was_stopped)


def _fleets(
    settings: Settings, run: RunRecord, folder: Path, ledger: Ledger, hosts: list[Host], view: Any
) -> Iterator[Fleet]:
    """The run's fleets, to be run one after the other."""
    from remote.fleet import Fleet, Limits
    from tasks.workers import crews, launcher

    for crew in crews(settings, hosts, run):
        yield Fleet(
            hosts=crew.hosts,
            run=run,
            run_folder=folder,
            ledger=ledger,
            launch=launcher(settings, run.run_id),
            on_event=(lambda _: None) if view is None else view.handle,
            limits=Limits(
                lost_after_sec=max(1.0, settings.fleet.lost_after_sec - ONE_TRY_SEC[settings.fleet.kind]),
                give_up_after_sec=settings.fleet.give_up_after_sec,
                max_attempts=settings.fleet.max_attempts,
            ),
            shared=settings.shared_results,
            agents=crew.agents,
            only=crew.trial_ids,
        )


def _conclude(run: RunRecord, ledger: Ledger, *, interrupted: bool) -> None:
    from bench.result import End

    ends = Counter(entry.end for entry in ledger.entries.values() if entry.end is not None)
    total = len(ledger.entries)
    tally = ", ".join(f"{count} {end.value}" for end, count in ends.most_common())
    if interrupted:
        raise Interrupted(f"run {run.run_id}: interrupted: {tally}; `inv bench --resume={run.run_id}` goes on with it")
    if ends[End.SUCCEEDED] == total:
        print(f"run {run.run_id}: all {total} trials SUCCEEDED")
        return
    again = any(end.is_resumable for end in ends)
    advice = f"; `inv bench --resume={run.run_id}` tries again what was not the trial's own doing" if again else ""
    raise SomeTrialsFailed(f"run {run.run_id}: {tally} of {total}{advice}")


@contextlib.contextmanager
def _ledger_errors(run_id: str) -> Iterator[None]:
    from remote.ledger import LedgerError

    try:
        yield
    except (LedgerError, OSError) as error:
        raise Resumable(
            f"{error}; what runs on the workers goes on: mend it, then type `inv bench --resume={run_id}`"
        ) from None


@contextlib.contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    """A SIGTERM ends a run as Ctrl-C does: workers stopped, ledger complete."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
