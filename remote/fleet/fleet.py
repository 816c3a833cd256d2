"""A fleet: each of many hosts runs the trials planned for it, with retries after transient failures.

Every decision is in the ledger before it takes effect, every job is identified by its folder, and a result counts once
it is verified in the run's folder. So the operator's process may be killed at any moment: a new Fleet over the same
ledger resumes running trials, collects those that ended meanwhile, and starts the others.

The trials of a lost host wait for it. If it returns and the trial still runs there or is done, that attempt continues.
If the workers share a volume, a result that a lost worker left there counts, and its trial is not run again.

Two operators may use the same hosts: a host's slot admits one trial at a time, and a run waits for a busy slot.
"""

import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import Outcome, ReasonCode
from remote.fleet.events import FleetEvent
from remote.fleet.ledger import Ledger
from remote.fleet.retry_policy import RetryLimits, RetryPolicy
from remote.fleet.worker import DOWNLOAD_FOLDER, CommandFactory, FleetState, OpenTrial, Worker
from remote.hosts.host_protocol import Host
from remote.jobs.job import Agent


class Fleet:
    """The hosts and open trials of one run.

    `make_command` gets (host, trial, attempt, job folder). The trial is in that folder as trial.json; the result is
    expected in its `out/`, or below `shared_folder`, which every host mounts (`remote.fleet.outcome`).
    `on_event` is called from several threads and must not raise. `trial_ids` limits the fleet to these trials (None:
    all). `diagnose` says why a lost host does not come back.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[Host],
        run: RunRecord,
        run_folder: Path,
        ledger: Ledger,
        make_command: CommandFactory,
        on_event: Callable[[FleetEvent], None] = lambda _: None,
        limits: RetryLimits,
        shared_folder: str | None = None,
        make_agent: Callable[[Host], Agent] = Agent,
        trial_ids: Collection[str] | None = None,
        diagnose: Callable[[], str | None] = lambda: None,
    ) -> None:
        max_deadline_sec = max((planned.trial.deadline_sec for planned in run.planned), default=0.0)
        self.ledger = ledger
        busy_timeout_sec = limits.reconnect_timeout_sec + max_deadline_sec
        self._retry_policy = RetryPolicy(limits, busy_timeout_sec=busy_timeout_sec, worker_count=len(hosts))
        self._state = FleetState(
            run_id=run.run_id,
            run_folder=run_folder,
            ledger=ledger,
            retry_policy=self._retry_policy,
            make_command=make_command,
            on_event=on_event,
            shared_folder=shared_folder,
            diagnose=diagnose,
        )
        self._workers = {host.name: Worker(make_agent(host), self._state) for host in hosts}
        self._failure: BaseException | None = None
        planned = [each for each in run.planned if trial_ids is None or each.trial_id in trial_ids]
        trials = [self._restore_trial(each, limits.max_attempts) for each in planned if ledger.is_open(each.trial_id)]
        for trial in sorted(trials, key=lambda trial: trial.attempt is None):  # those that have begun first
            worker = self._workers.get(trial.planned.worker)
            if worker is not None:
                worker.trials.append(trial)
                continue
            verdict = Outcome.of(ReasonCode.NO_WORKER, f"{trial.planned.worker} is not in this fleet")
            self._state.end_trial(trial.planned, trial.attempt, verdict)

    def _restore_trial(self, planned: PlannedTrial, max_attempts: int) -> OpenTrial:
        entry = self.ledger.entries[planned.trial_id]
        attempt = next((each for each in entry.attempts if each.reason is None), None)
        used = max(len(entry.attempts) - (attempt is not None), entry.attempts_before_reopening)
        return OpenTrial(planned=planned, max_attempts=used + max_attempts, attempt=attempt)

    def run(self) -> None:
        """Run until every trial has ended. KeyboardInterrupt cancels the workers' jobs and ends them as CANCELLED.

        A second KeyboardInterrupt is raised at once; jobs continue and can be resumed. Raises LedgerError if the run's
        folder can no longer be written (jobs continue and can be resumed), and any other error of a worker's thread.
        """
        done_events = []
        for worker in self._workers.values():
            done_events.append(done := threading.Event())
            threading.Thread(target=self._run_worker, args=(worker, done), name=worker.name, daemon=True).start()
        try:
            self._wait_all(done_events)
        except KeyboardInterrupt:
            self.stop()
            self._wait_all(done_events)
        if self._failure is not None:
            raise self._failure
        for worker in self._workers.values():  # it was stopped: what has not begun has ended, too
            for trial in worker.trials:
                attempts = self.ledger.entries[trial.trial_id].attempts
                last = attempts[-1] if attempts else None
                reason = f"cancelled after attempt {last.number}" if last else "cancelled before it started"
                self._state.end_trial(trial.planned, last, Outcome.of(ReasonCode.CANCELLED, reason))
        shutil.rmtree(self._state.run_folder / DOWNLOAD_FOLDER, ignore_errors=True)  # attempts without a result

    @property
    def was_stopped(self) -> bool:
        """True once this fleet was told to stop."""
        return self._retry_policy.stopping.is_set()

    def stop(self) -> None:
        """Cancel running trials and start no others."""
        self._retry_policy.stopping.set()

    @staticmethod
    def _wait_all(done_events: Sequence[threading.Event]) -> None:
        """Wait for all threads, without `Thread.join`.

        An interrupted join makes CPython 3.11 treat a running thread as ended; its job would be left running.
        """
        for done in done_events:
            while not done.wait(0.1):  # in slices, so that a signal reaches the main thread
                pass

    def _run_worker(self, worker: Worker, done: threading.Event) -> None:
        try:
            worker.serve()
        except BaseException as error:  # noqa: BLE001 - raised again by run(); jobs continue
            self._failure = self._failure or error
            self._retry_policy.detaching.set()
        finally:
            done.set()
