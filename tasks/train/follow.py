"""Follow a training to its end: its job first, its files second; then its adapter comes home.

The training needs no operator: Ctrl-C, SIGTERM, a closed laptop or a cut connection only end the following.
"""

import contextlib
import signal
import time
from pathlib import Path

from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.host_protocol import Host, HostError, collapse_whitespace
from remote.hosts.pods.kubectl import ClusterError
from tasks.cli.signals import as_ctrl_c
from tasks.clients.target_cluster import resolve_target
from tasks.clients.workers import PodDiagnosis
from tasks.errors import Interrupted, RetryableError, SomeTrialsFailed, error_class
from tasks.fleet import runner
from tasks.fleet.collect import collect_run
from tasks.fleet.run_store import resume_command
from tasks.fleet.training_job import TrainingJob, TrainingState, import_attempts, open_job, read_state
from tasks.fleet.training_progress import TrainingLine, TrainingView
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.layers import Settings

POLL_SEC = 1.0


def follow(settings: Settings, run: RunRecord, folder: Path) -> None:
    """Follow a training until it has ended, and collect it. Raises a TaskFailed if it did not succeed.

    Ctrl-C raises Interrupted, and the training continues.
    """
    runner.clear_discarded(folder)
    checkpoint_step = None
    with runner.ledger_errors(run.run_id), as_ctrl_c(signal.SIGTERM):
        try:
            with open_job(settings, run) as job, TrainingView(TrainingLine(settings, run)) as view:
                _wait(settings, run, folder, job, view)
                checkpoint_step = view.checkpoint_step
        except (KeyboardInterrupt, Interrupted) as error:
            run_id = run.run_id
            raise Interrupted(
                f"run {run_id}: detached, the training continues",
                remedy=f"`{resume_command(run_id)}` follows it again, `inv cancel --run={run_id}` stops it",
            ) from error
        report_outcome(settings, run, folder, checkpoint_step)


def report_outcome(settings: Settings, run: RunRecord, folder: Path, checkpoint_step: int | None = None) -> None:
    """Collect a training that has ended. Raises an error with the command that resumes it if it did not succeed.

    `checkpoint_step` is the step of the last checkpoint that the training has reported.
    """
    run_id, command = run.run_id, resume_command(run.run_id)
    outcome = Ledger(folder / LEDGER_FILE).entries[TRIAL_ID].outcome
    if outcome is None or outcome.status is TrialStatus.SUCCEEDED:
        with contextlib.suppress(SomeTrialsFailed):  # it has not ended, which is said below
            collect_run(settings, run, folder)
        outcome = Ledger(folder / LEDGER_FILE).entries[TRIAL_ID].outcome
    if outcome is None:
        raise SomeTrialsFailed(f"run {run_id}: not ended", remedy=f"`{command}` resumes it")
    if outcome.status is TrialStatus.SUCCEEDED or outcome.cause is None:
        print(f"run {run_id}: trained")
        return
    last = "" if checkpoint_step is None else f" (last checkpoint: step {checkpoint_step:,})"
    problem, remedy = outcome.problem_and_remedy(command)
    raise error_class(outcome.cause.exit_code)(f"run {run_id}: {outcome.status.value}: {problem}{last}", remedy=remedy)


def _wait(settings: Settings, run: RunRecord, folder: Path, job: TrainingJob, view: TrainingView) -> None:
    """Return once the training has ended. Raises RetryableError if its place does not answer."""
    diagnosis = PodDiagnosis(resolve_target(settings) if settings.connector.is_cluster else None)
    answered_at = time.monotonic()
    while True:
        try:
            if job.end() is not None:
                return
            state = _read(run, job, view, diagnosis)
            if state is not None:
                ledger = Ledger(folder / LEDGER_FILE)
                if ledger.is_open(TRIAL_ID):
                    import_attempts(run, ledger, state)
                view.update(state)
                if state.has_ended and job.outlives_end:
                    return
            answered_at = time.monotonic()
        except (HostError, ClusterError) as error:
            view.note(collapse_whitespace(error))
            if time.monotonic() - answered_at > settings.fleet.login_timeout_sec:
                raise RetryableError.from_error(
                    error, remedy=f"the training continues: `{resume_command(run.run_id)}` follows it again"
                ) from error
        time.sleep(POLL_SEC)


def _read(run: RunRecord, job: TrainingJob, view: TrainingView, diagnosis: PodDiagnosis) -> TrainingState | None:
    """Read the state through the first host that answers; print why if none does, as while the pods start."""
    hosts: list[Host] = list(job.hosts)
    for host in hosts:
        try:
            return read_state(run, host)
        except HostError as error:
            reason = collapse_whitespace(error)
    view.note(diagnosis.read() or reason)
    return None
