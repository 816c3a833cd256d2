"""A training until its end: followed, started again after a loss, and left behind when somebody leaves.

The training is a detached job of the leading worker. Ctrl-C, a SIGTERM or a closed laptop end the following alone. What
is lost is tried again from the last checkpoint, up to train.max_restarts; where a worker does not come back within
train.wait, an elastic training goes on with those that answer.
"""

import contextlib
import dataclasses
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.records import Trial
from bench.records.paths import CHECKPOINTS_FOLDER
from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from bench.records.training import is_at_its_limit
from remote.fleet.checkpoint_sync import CheckpointSync
from remote.fleet.ledger import Entry, Ledger
from remote.hosts.host import Host, HostError
from remote.jobs.agent import Agent
from remote.jobs.job import Job, slot_of
from reports.summary.cost import Price
from tasks.cli.signals import interrupted_by
from tasks.clients.workers import checkpoints_at
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, SomeTrialsFailed, UsageError
from tasks.fleet import runner, training_progress
from tasks.fleet.collect import collect_run
from tasks.fleet.pricing import price_of
from tasks.fleet.run_store import resume_command
from tasks.fleet.training_progress import TrainingSpend, TrainingView
from tasks.settings.load import Settings
from tasks.train.trial_spec import TRIAL_ID

EXIT_BAD_INPUT, EXIT_REFUSED = "exit 2: ", "exit 4: "  # how the reason of a trial begins that refused to start
CANCEL_SEC = 30.0


@dataclasses.dataclass(kw_only=True)
class TrainingSession:
    """One training under way: its plan, its folder here and the workers that may run it."""

    settings: Settings
    run: RunRecord
    folder: Path
    ledger: Ledger
    hosts: list[Host]
    price: Price | None

    @classmethod
    def of(
        cls, settings: Settings, run: RunRecord, folder: Path, ledger: Ledger, hosts: list[Host]
    ) -> "TrainingSession":
        device = run.provenance.get("inputs", {}).get("device")
        price = price_of(settings, [device] if device else [])
        return cls(settings=settings, run=run, folder=folder, ledger=ledger, hosts=hosts, price=price)

    @property
    def trial(self) -> Trial:
        return self.run.planned[0].trial

    def spent(self) -> TrainingSpend:
        return training_progress.spent(self.folder, TRIAL_ID, self.price)

    def follow(self, *, plain: bool) -> None:
        """Until its end, which is printed or raised."""
        runner.keep(self.folder)
        with runner.ledger_errors(self.run.run_id), interrupted_by(signal.SIGTERM):
            try:
                with TrainingView(run_id=self.run.run_id, spent=self.spent, plain=plain) as view:
                    self._once(view)
                    while self._goes_on_with_fewer(view):
                        self._once(view)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"run {self.run.run_id}: it goes on without being followed; `{resume_command(self.run.run_id)}` follows "
                    f"it again and starts it again where needed, `inv cancel --run={self.run.run_id}` stops it"
                ) from None
        self.conclude()

    def _once(self, view: TrainingView) -> None:
        keeper = self._keeper()
        fleets = runner.fleets_of(
            self.settings, self.run, self.folder, self.ledger, self.hosts, view.handle, keeper=keeper
        )
        for fleet in fleets:
            fleet.run(stops_when_interrupted=False)
        keeper.wait()

    def _keeper(self) -> CheckpointSync:
        is_apart = self.settings.fleet.kind == "pods" and self.settings.shared_results is None
        per_sec = None if self.price is None else self.trial.world_size * self.price.usd_per_gpu_hour / 3600.0
        return CheckpointSync(
            ledger=self.ledger,
            place=checkpoints_at(self.settings, self.run.run_id),
            home=self.folder / CHECKPOINTS_FOLDER if is_apart else None,
            usd_per_sec=per_sec,
        )

    def _goes_on_with_fewer(self, view: TrainingView) -> bool:
        """Where a worker was not replaced in time: whether the training was planned anew with those that answer."""
        entry = self.ledger.entries[TRIAL_ID]
        if not self.settings.train.elastic or entry.end is not TrialStatus.LOST:
            return False
        there, planned = reachable_workers(self.hosts), self.run.workers
        if not there or all(name in [host.name for host in there] for name in planned):
            return False
        there.sort(key=lambda host: host.name not in planned)  # those that have trained until now come first
        self.hosts = [*there, *(host for host in self.hosts if host not in there)]
        reason = entry.reason
        self.plan_again(dataclasses.replace(self.trial, world_size=min(self.trial.world_size, len(there))))
        view.note(f"{reason}; it goes on with {', '.join(self.run.workers)}")
        return True

    def plan_again(self, trial: Trial, changed: Sequence[str] = ()) -> None:
        """Open a training that has ended for now with another plan: this trial, on the first of `hosts`.

        What earlier attempts may still run is stopped. `changed`: what else is another in it, in words.
        """
        by_name = {host.name: host for host in self.hosts}
        attempts = [attempt for attempt in self.ledger.entries[TRIAL_ID].attempts if attempt.reason is None]
        for attempt in attempts:
            if (host := by_name.get(attempt.worker)) is not None:
                with contextlib.suppress(HostError):  # one that does not answer; its job has lost its ranks
                    Job(Agent(host), attempt.folder).cancel(grace_sec=CANCEL_SEC)
        (before,) = self.run.planned
        names = [host.name for host in self.hosts[: trial.world_size]]
        planned = dataclasses.replace(before, trial=trial, worker=names[0])
        self.run = dataclasses.replace(self.run, workers=names, planned=[planned])
        self.run.write(self.folder)
        self.ledger.reopened(TRIAL_ID, changed)
        for attempt in attempts:
            self.ledger.retried(TRIAL_ID, attempt.number, "the training was planned anew")

    def conclude(self) -> None:
        """Say how it ended, and bring the adapter home; else raised, with the command that goes on."""
        entry, run_id = self.ledger.entries[TRIAL_ID], self.run.run_id
        reason, again = entry.reason or "", f"`{resume_command(run_id)}` goes on"
        if entry.end is TrialStatus.SUCCEEDED:
            print(f"run {run_id}: trained")
            collect_run(self.settings, self.run, self.folder, self.hosts)
            return
        if is_at_its_limit(reason):
            raise RetryableError(f"run {run_id}: {reason}, with a checkpoint; raise that, then {again}")
        if was_rejected(entry):
            kind = ConfirmationRequired if reason.startswith(EXIT_REFUSED) else UsageError
            raise kind(f"run {run_id}: {reason.partition(': ')[2]}. Once that is put right, {again}")
        if entry.end is not None and entry.end.is_resumable:
            raise RetryableError(f"run {run_id}: {entry.end.value}: {reason}; {again} from its last checkpoint")
        end = "has no end" if entry.end is None else entry.end.value
        raise SomeTrialsFailed(f"run {run_id}: {end}: {reason}; `inv collect report` brings what there is")


def was_rejected(entry: Entry) -> bool:
    """Whether the last attempt did not begin, because of what somebody can put right: data, model, a full disk."""
    return entry.end is TrialStatus.FAILED and (entry.reason or "").startswith((EXIT_BAD_INPUT, EXIT_REFUSED))


def reachable_workers(hosts: Sequence[Host]) -> list[Host]:
    """Those that answer now, in their order."""

    def is_there(host: Host) -> bool:
        try:
            Agent(host).holder(slot_of(host))
        except HostError:
            return False
        return True

    with ThreadPoolExecutor(max_workers=min(32, len(hosts))) as pool:
        return [host for host, there in zip(hosts, pool.map(is_there, hosts), strict=True) if there]
