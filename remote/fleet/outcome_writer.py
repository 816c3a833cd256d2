"""Writer of an attempt's outcome, once: first the result file, then the ledger, then the event."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.records.atomic_files import write_atomic
from bench.records.paths import RESULT_FILE, TRIALS_FOLDER
from bench.records.run import PlannedTrial
from bench.records.status import Outcome
from remote.fleet.events import EventType, FleetEvent, attempt_event
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.queue import OpenTrial, TrialQueue


class OutcomeWriter:
    """The component that ends or requeues the trials of one run. Safe to use from many threads.

    Raises LedgerError and OSError if the run's folder cannot be written.
    """

    def __init__(
        self, run_folder: Path, ledger: Ledger, queue: TrialQueue, on_event: Callable[[FleetEvent], None]
    ) -> None:
        self._run_folder, self._ledger, self._queue, self._on_event = run_folder, ledger, queue, on_event
        self._lock = threading.Lock()

    def end_trial(
        self, planned: PlannedTrial, attempt: Attempt | None, verdict: Outcome, result: Path | None = None
    ) -> None:
        """Record the trial's end. The first end counts; later ones are ignored.

        `result` is the attempt's verified result on this machine; its folder is deleted afterwards.
        """
        with self._lock:
            if not self._ledger.is_open(planned.trial_id):
                return
            trial_folder = self._run_folder / TRIALS_FOLDER / planned.trial_id
            if result is not None:
                trial_folder.mkdir(parents=True, exist_ok=True)
                write_atomic(trial_folder / RESULT_FILE, result.read_bytes())
            else:
                (trial_folder / RESULT_FILE).unlink(missing_ok=True)  # a result from before the trial was reopened
            number = None if attempt is None else attempt.number
            self._ledger.record_end(planned.trial_id, verdict, number)
            if result is not None:
                shutil.rmtree(result.parent)
        event = attempt_event(EventType.ENDED, planned, attempt)
        may_still_run = verdict.cause is not None and verdict.cause.may_still_run
        self._on_event(replace(event, status=verdict.status, reason=verdict.text, may_still_run=may_still_run))
        self._queue.notify()

    def requeue(self, trial: OpenTrial, attempt: Attempt, verdict: Outcome) -> None:
        """Requeue the trial after an attempt without a result, unless the trial has ended by now."""
        if not self._ledger.is_open(trial.trial_id):
            return
        self._ledger.record_retry(trial.trial_id, attempt.number, verdict)
        self._on_event(replace(attempt_event(EventType.RETRYING, trial.planned, attempt), reason=verdict.text))
        self._queue.put(trial)
