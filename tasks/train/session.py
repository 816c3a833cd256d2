"""Session of a training: follow it to its end, restart it after a loss, detach on Ctrl-C.

The training is a detached job of the leading worker; Ctrl-C, SIGTERM or a closed laptop only end the session. A lost
attempt is restarted from the last checkpoint, up to train.max_restarts times.
"""

import contextlib
import dataclasses
import signal
from pathlib import Path

from bench.records import Trial
from bench.records.paths import CHECKPOINTS_FOLDER
from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.checkpoint_sync import CheckpointSync
from remote.fleet.ledger import Ledger
from remote.hosts.base import Host, HostError
from remote.jobs.job import Agent, Job
from reports.read import attempts
from reports.summary.cost import Price
from tasks.cli.signals import as_ctrl_c
from tasks.clients.workers import checkpoint_folder
from tasks.errors import Interrupted, SomeTrialsFailed, error_class
from tasks.fleet import runner
from tasks.fleet.collect import collect_run
from tasks.fleet.notify import notify_end
from tasks.fleet.pricing import worker_price
from tasks.fleet.run_store import resume_command
from tasks.fleet.training_progress import TrainingView
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.load import Settings

CANCEL_GRACE_SEC = 30.0


@dataclasses.dataclass(kw_only=True)
class TrainingSession:
    """A running training: its plan, local folder and candidate workers."""

    settings: Settings
    run: RunRecord
    folder: Path
    ledger: Ledger
    hosts: list[Host]
    price: Price | None

    @classmethod
    def create(
        cls, settings: Settings, run: RunRecord, folder: Path, ledger: Ledger, hosts: list[Host]
    ) -> "TrainingSession":
        """Create the session with the price of the run's device. Raises UsageError for invalid prices."""
        device = run.provenance.get("inputs", {}).get("device")
        price = worker_price(settings, device)
        return cls(settings=settings, run=run, folder=folder, ledger=ledger, hosts=hosts, price=price)

    @property
    def trial(self) -> Trial:
        return self.run.planned[0].trial

    def wait(self, *, plain: bool) -> None:
        """Block until the training ends; then print the result, or raise a TaskFailed.

        Ctrl-C raises Interrupted, and the training continues.
        """
        runner.clear_discarded(self.folder)
        notification = notify_end(self.settings, self.run, self.folder, self.ledger)
        with runner.ledger_errors(self.run.run_id), as_ctrl_c(signal.SIGTERM), notification:
            try:
                with TrainingView(
                    run_id=self.run.run_id,
                    read_attempts=lambda: attempts.read(self.folder, TRIAL_ID),
                    price=self.price,
                    plain=plain,
                ) as view:
                    self._run_fleets(view)
                checkpoint_step = view.checkpoint_step
            except KeyboardInterrupt as error:
                run_id = self.run.run_id
                raise Interrupted(
                    f"run {run_id}: detached, the training continues",
                    remedy=f"`{resume_command(run_id)}` reattaches and "
                    f"restarts it if necessary, `inv cancel --run={run_id}` stops it",
                ) from error
        self.report_outcome(checkpoint_step)

    def _run_fleets(self, view: TrainingView) -> None:
        checkpoint_sync = self._make_checkpoint_sync()

        fleets = runner.make_fleets(
            self.settings, self.run, self.folder, self.ledger, self.hosts, view.handle, checkpoint_sync=checkpoint_sync
        )
        for fleet in fleets:
            fleet.run(cancel_on_interrupt=False)
        checkpoint_sync.wait()

    def _make_checkpoint_sync(self) -> CheckpointSync:
        copies_home = self.settings.connector.is_cluster and self.settings.shared_results is None
        usd_per_sec = None if self.price is None else self.trial.world_size * self.price.usd_per_gpu_hour / 3600.0
        return CheckpointSync(
            ledger=self.ledger,
            remote_folder=checkpoint_folder(self.settings, self.run.run_id),
            local_folder=self.folder / CHECKPOINTS_FOLDER if copies_home else None,
            usd_per_sec=usd_per_sec,
        )

    def replan(self, trial: Trial) -> None:
        """Reopen a stopped training with other limits. Jobs of earlier attempts that may still run are cancelled."""
        by_name = {host.name: host for host in self.hosts}
        attempts = [attempt for attempt in self.ledger.entries[TRIAL_ID].attempts if attempt.reason is None]
        for attempt in attempts:
            if (host := by_name.get(attempt.worker)) is not None:
                with contextlib.suppress(HostError):  # an unreachable worker: its job has lost its ranks
                    Job(Agent(host), attempt.folder).cancel(grace_sec=CANCEL_GRACE_SEC)
        (before,) = self.run.planned
        self.run = dataclasses.replace(self.run, planned=[dataclasses.replace(before, trial=trial)])
        self.run.write(self.folder)
        self.ledger.reopen(TRIAL_ID)
        for attempt in self.ledger.entries[TRIAL_ID].attempts:
            if attempt.reason is None:
                self.ledger.record_retry(
                    TRIAL_ID, attempt.number, Outcome.of(ReasonCode.REPLANNED, "the training was replanned")
                )

    def report_outcome(self, checkpoint_step: int | None = None) -> None:
        """Collect the adapter of a successful training. Otherwise raise an error with the command that resumes it.

        `checkpoint_step` is the step of the last checkpoint that the training has reported.
        """
        last = "" if checkpoint_step is None else f" (last checkpoint: step {checkpoint_step:,})"
        entry, run_id = self.ledger.entries[TRIAL_ID], self.run.run_id
        if entry.status is TrialStatus.SUCCEEDED:
            print(f"run {run_id}: trained")
            collect_run(self.settings, self.run, self.folder, self.hosts)
            return
        outcome, command = entry.outcome, resume_command(run_id)
        if outcome is None or outcome.cause is None:
            raise SomeTrialsFailed(f"run {run_id}: not ended", remedy=f"`{command}` resumes it")
        error_type = error_class(outcome.cause.exit_code)
        problem, remedy = outcome.problem_and_remedy(command)
        raise error_type(f"run {run_id}: {outcome.status.value}: {problem}{last}", remedy=remedy)
