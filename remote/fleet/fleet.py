"""Many hosts, one queue of trials: hand out, follow, retry what is transient, requeue, settle.

Every decision is in the ledger before it is acted on, every job can be found again by its folder, and a result counts
once it lies verified in the run's own folder. So the operator may be killed at any moment; a new Fleet over the same
ledger picks up what runs, what has ended meanwhile, and what never started.

A trial whose host is lost goes to another one (unless pinned to it). When the lost host comes back with the trial still
running or done, the first complete result wins and the other copy is cancelled. Where the workers share a volume, a
result that a dead one left there counts, and its trial is not run again.

Two operators may use the same hosts: a host's slot lets in one trial at a time, and a run that finds it taken waits.
"""

import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.checkpoint_sync import CheckpointSync
from remote.fleet.events import FleetEvent
from remote.fleet.ledger import Ledger
from remote.fleet.outcome import Verdict
from remote.fleet.outcome_writer import OutcomeWriter
from remote.fleet.queue import OpenTrial, TrialQueue
from remote.fleet.retry_policy import RetryLimits, RetryPolicy
from remote.fleet.worker import INCOMING, FleetState, Launch, Worker
from remote.hosts.host import Host
from remote.jobs.agent import Agent


class Fleet:
    """Runs the open trials of a ledger over hosts.

    `launch` makes the command for (host, trial, attempt, job folder); the trial lies in that folder as trial.json and
    the result is expected in its `out/`, or below `shared`, a folder that every host sees
    (`remote.fleet.shared_volume`). `on_event` is called from several threads and must not raise. `agents` makes a
    host's agent; `only` these trials of the run are run here. `keeper` looks after a training's checkpoints.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[Host],
        run: RunRecord,
        run_folder: Path,
        ledger: Ledger,
        launch: Launch,
        on_event: Callable[[FleetEvent], None] = lambda _: None,
        limits: RetryLimits | None = None,
        shared: str | None = None,
        agents: Callable[[Host], Agent] = Agent,
        only: Collection[str] | None = None,
        keeper: CheckpointSync | None = None,
    ) -> None:
        limits = RetryLimits() if limits is None else limits
        longest_sec = max((one.trial.deadline_sec for one in run.planned), default=0.0)
        planned = {one.trial_id: one for one in run.planned if only is None or one.trial_id in only}
        self._trials: dict[str, OpenTrial] = {}
        queue = TrialQueue(ledger, self._trials)
        self.ledger, self._queue = ledger, queue
        self._patience = RetryPolicy(limits, busy_for_sec=limits.give_up_after_sec + longest_sec, workers=len(hosts))
        self._settlement = OutcomeWriter(run_folder, ledger, queue, on_event)
        self._incoming = run_folder / INCOMING
        state = FleetState(
            run_id=run.run_id,
            run_folder=run_folder,
            ledger=ledger,
            queue=queue,
            settlement=self._settlement,
            patience=self._patience,
            launch=launch,
            on_event=on_event,
            shared=shared,
            keeper=keeper,
        )
        self._workers = {host.name: Worker(agents(host), state) for host in hosts}
        self._failure: BaseException | None = None
        for trial_id in ledger.open_trials():
            if trial_id in planned:
                self._take_stock(planned[trial_id], limits.max_attempts)

    def _take_stock(self, planned: PlannedTrial, max_attempts: int) -> None:
        """Give an open trial to the worker that has an earlier attempt, queue it, or end it as LOST."""
        trial_id, entry = planned.trial_id, self.ledger.entries[planned.trial_id]
        live = [attempt for attempt in entry.attempts if attempt.reason is None]
        spent = max(len(entry.attempts) - len(live), entry.spent)
        trial = self._trials[trial_id] = OpenTrial(planned=planned, budget=spent + max_attempts)
        known = [attempt for attempt in live if attempt.worker in self._workers]
        for attempt in live:
            if attempt not in known:
                self.ledger.retried(trial_id, attempt.number, f"{attempt.worker} is not in this fleet")
        if planned.worker is not None and planned.worker not in self._workers:
            self._end(trial, TrialStatus.LOST, f"{planned.worker} is not in this fleet")
        elif known:
            for attempt in known:
                self._workers[attempt.worker].earlier.append((trial, attempt))
                self._queue.release(trial, attempt.worker)
        else:
            self._queue.put(trial)

    def run(self, *, stops_when_interrupted: bool = True) -> None:
        """Work until every trial has its end. KeyboardInterrupt stops the workers' jobs and ends them as CANCELLED.

        A second interrupt leaves at once; what runs goes on and can be resumed. So does the first one where
        `stops_when_interrupted` is False: it is raised. Raises LedgerError when the run's folder can no longer be
        written (jobs go on, resume later), and whatever else broke a worker's thread.
        """
        ends = []
        for worker in self._workers.values():
            ends.append(threading.Event())
            threading.Thread(target=self._guard, args=(worker, ends[-1]), name=worker.name, daemon=True).start()
        try:
            self._join(ends)
        except KeyboardInterrupt:
            if not stops_when_interrupted:
                self._patience.abandoning.set()
                self._queue.close()
                raise
            self.stop()
            self._join(ends)
        if self._failure is not None:
            raise self._failure
        for trial in self._queue.open_trials():
            if self.was_stopped:
                tried = self.ledger.entries[trial.trial_id].attempts
                after = f"cancelled after attempt {tried[-1].number} on {tried[-1].worker}" if tried else None
                self._end(trial, TrialStatus.CANCELLED, after or "cancelled before it started")
            else:
                self._end(trial, TrialStatus.LOST, "no worker is left that may run it")
        shutil.rmtree(self._incoming, ignore_errors=True)  # left by attempts without a result

    def _end(self, trial: OpenTrial, end: TrialStatus, reason: str) -> None:
        """End a trial that no worker has, with its last attempt if there was one."""
        attempts = self.ledger.entries[trial.planned.trial_id].attempts
        last = attempts[-1] if attempts else None
        self._settlement.end(trial.planned, last, Verdict(end=end, reason=reason))

    @property
    def was_stopped(self) -> bool:
        """True once somebody asked this fleet to stop."""
        return self._patience.stopping.is_set()

    def stop(self) -> None:
        """Cancel what runs and start nothing more."""
        self._patience.stopping.set()
        self._queue.close()

    @staticmethod
    def _join(ends: Sequence[threading.Event]) -> None:
        """Not `Thread.join`: interrupted, CPython 3.11 takes a running thread for one that has ended, and its job would
        be left running."""
        while not all(end.is_set() for end in ends):
            for end in ends:
                end.wait(0.1)  # in slices, so that a signal reaches the main thread

    def _guard(self, worker: Worker, end: threading.Event) -> None:
        try:
            worker.serve()
        except BaseException as error:  # noqa: BLE001 - carried to the caller of run(); the jobs go on without us
            self._failure = self._failure or error
            self._patience.abandoning.set()
            self._queue.close()
        finally:
            end.set()
