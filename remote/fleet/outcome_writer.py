"""What becomes of an attempt, written once: the result in its place first, then the ledger, then the event."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.records.atomic_files import write_atomic
from bench.records.paths import RESULT_FILE, TRIALS_FOLDER
from bench.records.run import PlannedTrial
from remote.fleet.events import EventType, FleetEvent, of_attempt
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.outcome import Verdict
from remote.fleet.queue import OpenTrial, TrialQueue


class OutcomeWriter:
    """Ends the trials of one run, or queues them again. Safe to use from many threads.

    Raises LedgerError and OSError where the run's folder cannot be written.
    """

    def __init__(
        self, run_folder: Path, ledger: Ledger, queue: TrialQueue, on_event: Callable[[FleetEvent], None]
    ) -> None:
        self._run_folder, self._ledger, self._queue, self._on_event = run_folder, ledger, queue, on_event
        self._settling = threading.Lock()

    def end(self, planned: PlannedTrial, attempt: Attempt | None, verdict: Verdict, result: Path | None = None) -> None:
        """Write the trial's end. The first end stands; a later one changes nothing.

        `result` is the attempt's verified result on this machine; its folder is used up.
        """
        with self._settling:
            if not self._ledger.is_open(planned.trial_id):
                return
            place = self._run_folder / TRIALS_FOLDER / planned.trial_id
            if result is not None:
                place.mkdir(parents=True, exist_ok=True)
                write_atomic(place / RESULT_FILE, result.read_bytes())
            else:
                (place / RESULT_FILE).unlink(missing_ok=True)  # of an end that was reopened since
            number = None if attempt is None else attempt.number
            self._ledger.ended(planned.trial_id, verdict.end, verdict.reason, number)
            if result is not None:
                shutil.rmtree(result.parent)
        self._on_event(replace(of_attempt(EventType.ENDED, planned, attempt), end=verdict.end, reason=verdict.reason))
        self._queue.settle()

    def try_again(self, trial: OpenTrial, attempt: Attempt, reason: str) -> None:
        """This attempt came to nothing: the trial goes back into the queue, unless it has ended by now."""
        if not self._ledger.is_open(trial.trial_id):
            return
        self._ledger.retried(trial.trial_id, attempt.number, reason)
        self._on_event(replace(of_attempt(EventType.RETRYING, trial.planned, attempt), reason=reason))
        self._queue.put(trial)
