"""What the shared volume says of a training that a Job runs by itself, taken into the run's ledger.

The pods write their attempts beside each other, and the first one the training's end; nobody follows them. The ledger
gets the times at which the volume's files were written, so that what the training took does not depend on when it is
asked for.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.records.atomic_files import write_atomic
from bench.records.paths import ORDER_END_FILE, PROGRESS_FILE, RESULT_FILE, TRIALS_FOLDER
from bench.records.result import TrialStatus
from bench.records.run import OrderEnd, RunRecord
from remote.fleet.fetch_result import fetch_result
from remote.fleet.ledger import Ledger
from remote.fleet.worker import INCOMING
from remote.hosts.command import Command
from remote.hosts.host import Host, HostUnreachable, check
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobState, JobStatus
from remote.jobs.transfer import pull
from reports.read.attempts import AttemptSpan

_LOOK_SEC = 60.0
_LOOK = f"""
import json, os, re, sys
place, trial = sys.argv[1:]
found = []
for name in os.listdir(place) if os.path.isdir(place) else []:
    match = re.fullmatch(re.escape(trial) + "[.]([0-9]{{1,9}})", name)
    if match:
        folder = os.path.join(place, name)
        times = [entry.stat().st_mtime for entry in os.scandir(folder)] or [os.stat(folder).st_mtime]
        found.append((int(match[1]), min(times), max(times)))
found.sort()
progress = None
if found:
    try:
        with open(os.path.join(place, f"{{trial}}.{{found[-1][0]}}", "{PROGRESS_FILE}")) as file:
            progress = json.load(file)
    except (OSError, ValueError):
        pass
print(json.dumps({{"attempts": found, "progress": progress}}))
"""


@dataclass(frozen=True, kw_only=True)
class VolumeState:
    """Attempts as (number, time of the first file, of the last file), and the progress of the last one, as JSON."""

    attempts: list[tuple[int, float, float]]
    progress: dict[str, Any] | None

    def held(self, run: RunRecord) -> list[AttemptSpan]:
        """The same attempts as a ledger has them; the last one goes on."""
        worker, size = run.workers[0], run.planned[0].trial.world_size
        found = [
            AttemptSpan(number=number, worker=worker, began=first, ended=last, workers=size)
            for number, first, last in self.attempts
        ]
        return [*found[:-1], *(replace(one, ended=None) for one in found[-1:])]


def place_of_run(run: RunRecord) -> str:
    """The folder of a run on the volume, as its Job was told."""
    return f"{run.provenance['inputs']['job']['shared']}/{run.run_id}"


def inspect(run: RunRecord, host: Host) -> VolumeState:
    """What the volume says now. Raises HostError."""
    command = Command(argv=(*host.python, "-c", _LOOK, place_of_run(run), run.planned[0].trial_id))
    done = check(host, command, host.run(command, timeout_sec=_LOOK_SEC))
    try:
        document = json.loads(done.stdout)
        attempts = [(int(number), float(first), float(last)) for number, first, last in document["attempts"]]
        progress = document["progress"]
    except (ValueError, KeyError, TypeError):
        raise HostUnreachable(f"{host.name}: the list of a training's attempts was cut short") from None
    return VolumeState(attempts=attempts, progress=progress if isinstance(progress, dict) else None)


def sync_ledger(run: RunRecord, folder: Path, ledger: Ledger, host: Host) -> None:
    """Take attempts and end into the run's ledger; `folder` is the run's. Raises HostError, LedgerError and OSError."""
    (planned,), seen = run.planned, inspect(run, host)
    entry = ledger.entries[planned.trial_id]
    if entry.end is not None:
        return
    place, size = place_of_run(run), planned.trial.world_size
    for number, first, _ in seen.attempts:
        if entry.attempt(number) is None:
            ledger.started(
                planned.trial_id, number, run.workers[0], f"{place}/{planned.trial_id}.{number}", size, at=first
            )
    last_of = {number: last for number, _, last in seen.attempts}
    for attempt in entry.attempts[:-1]:
        if attempt.reason is None:
            at = last_of.get(attempt.number)
            ledger.retried(planned.trial_id, attempt.number, "ended from outside; its Job began another", at=at)
    incoming, turn = folder / INCOMING, run.provenance["inputs"]["job"]["turn"]
    incoming.mkdir(exist_ok=True)
    pull(Agent(host), place, incoming, only=(ORDER_END_FILE.format(turn=turn),))
    end = OrderEnd.found(incoming, turn)
    decided = None if end is None else entry.attempt(end.attempt)
    if end is None or decided is None:
        return
    over = JobStatus(state=JobState.ENDED, exit_code=0 if end.end is TrialStatus.SUCCEEDED else 1, why="exited")
    job = Job(Agent(host), decided.folder)
    verdict, result = fetch_result(job, planned, decided, over, places=[decided.folder], incoming=incoming)
    into = folder / TRIALS_FOLDER / planned.trial_id
    if result is not None:
        into.mkdir(parents=True, exist_ok=True)
        write_atomic(into / RESULT_FILE, result.read_bytes())
    said, reason = (end.end, end.reason) if result is None else (verdict.end, verdict.reason)
    if said is TrialStatus.SUCCEEDED and result is None:
        said, reason = TrialStatus.LOST, "its end says SUCCEEDED, and its result is not on the volume"
    ledger.ended(planned.trial_id, said, reason, decided.number, at=last_of.get(decided.number))
