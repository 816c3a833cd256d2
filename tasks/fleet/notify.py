"""`notify.command`: a program of the operator's that gets the end of a run as one JSON object on standard input.

The command that writes a run's end into its ledger runs it: `inv bench` and `inv train` that follow the run, `inv
cancel`, and of a Kubernetes Job the `inv collect` that imports its end. So it runs at most once for each end. Whatever
the program does, the run's result and exit code stay; a failure is one line.
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.local_program import run_program
from tasks.errors import UsageError, escape_controls
from tasks.fleet.run_store import count_statuses, resume_command
from tasks.settings.layers import Settings

TIMEOUT_SEC = 60.0
_logger = logging.getLogger(__name__)


def check_command(settings: Settings) -> None:
    """Raise UsageError if the program of notify.command does not exist: later it would be missed at the run's end."""
    for program in settings.notify.command[:1]:
        if shutil.which(program) is None:
            raise UsageError(f"notify.command: {program}: no such program", remedy="install it, or correct the setting")


@contextlib.contextmanager
def notify_end(argv: Sequence[str], run: RunRecord, folder: Path, ledger: Ledger) -> Iterator[None]:
    """Run the block; if it ended the run, which had open trials before, run notify.command, which is `argv`."""
    was_open = bool(ledger.open_trials())
    try:
        yield
    finally:
        if argv and was_open and not ledger.open_trials():
            _run_command(argv, run, folder, ledger)


def _run_command(argv: Sequence[str], run: RunRecord, folder: Path, ledger: Ledger) -> None:
    try:
        document = json.dumps(_describe_end(run, folder, ledger), ensure_ascii=False)
        done = run_program(argv, label=argv[0], stdin=f"{document}\n".encode(), timeout_sec=TIMEOUT_SEC)
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        failure = "" if done.exit_code == 0 else ": ".join((f"{argv[0]}: exit code {done.exit_code}", *last))
    except Exception as error:  # noqa: BLE001 - whatever the program does, the run has ended; the line says what it was
        failure = str(error) or type(error).__name__
    if failure:
        line = escape_controls(f"notify.command: {' '.join(failure.split())[:300]}")
        _logger.warning("%s", line)
        print(f"! {line}", flush=True)


def _describe_end(run: RunRecord, folder: Path, ledger: Ledger) -> dict[str, Any]:
    """Return the end of a run: SUCCEEDED, or the status, cause and remedy of its first trial that did not succeed."""
    outcomes = [entry.outcome for entry in ledger.entries.values() if entry.outcome is not None]
    others = (outcome for outcome in outcomes if outcome.status is not TrialStatus.SUCCEEDED)
    outcome = next(others, Outcome(TrialStatus.SUCCEEDED))
    reason, remedy = outcome.problem_and_remedy(resume_command(run))
    events = [schema.parse_object(line) for line in (folder / LEDGER_FILE).read_bytes().splitlines()]
    return {
        "run": run.run_id,
        "kind": run.suite,
        "status": outcome.status.value,
        "statuses": count_statuses(ledger.entries.values()),
        "reason": reason,
        "reason_code": None if outcome.reason_code is None else outcome.reason_code.value,
        "remedy": remedy or None,
        "text": f"run {run.run_id}: {outcome.status.value}" + ("" if reason is None else f": {reason}"),
        "folder": str(folder.resolve()),
        "workers": len(run.workers),
        "created_at": run.created_at,
        "ended_at": max(event["time"] for event in events if event["event"] == "ended"),
    }
