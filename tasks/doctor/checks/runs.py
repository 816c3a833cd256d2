"""Check of the newest run: the outcomes of its trials, and its results."""

import contextlib

from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed
from tasks.fleet.run_store import resume_command
from tasks.reports.runs import RunInfo, find_runs

CHECKS = Checks("runs")

OUT_OF_MEMORY = Fault(
    "run {run}: {count} of {planned} trials ran out of GPU memory",
    "`inv tune` searches among settings that fit; or lower micro_batch_size or max_seq_len",
    status=CheckStatus.WARN,
)
FAILED = Fault(
    "run {run}: {count} of {planned} trials failed", "`inv report` shows the reason of each", status=CheckStatus.WARN
)
INTERRUPTED = Fault(
    "run {run}: {count} of {planned} trials were lost, preempted or cancelled, or have not ended",
    "`{command}` resumes",
    status=CheckStatus.WARN,
)
DAMAGED = Fault("run {run} is {state}", "`inv collect --run {run}` fetches it again if its workers still have it")
_STATUSES = {  # the statuses that each fault reports
    OUT_OF_MEMORY: (TrialStatus.OUT_OF_MEMORY,),
    FAILED: tuple(status for status in TrialStatus if status.is_failure and status is not TrialStatus.OUT_OF_MEMORY),
    INTERRUPTED: tuple(status for status in TrialStatus if status.is_resumable),
}


@CHECKS.register("newest", "How did the trials of the newest run end?", *_STATUSES, DAMAGED)
def newest(context: CheckContext) -> CheckResult | list[CheckResult]:
    known_runs = find_runs(context.settings.results_folder)
    if not known_runs:
        raise Skipped(f"there is no run in {context.settings.results_folder} yet: `inv bench --quick` creates one")
    newest_run = known_runs[0]
    record: RunRecord | str = newest_run.run_id
    with contextlib.suppress(ResultError):  # a damaged run is a fault of its own
        record = RunRecord.read(context.settings.results_folder / newest_run.run_id / RUN_FILE)
    return run_results(newest_run, resume_command(record))


def run_results(run: RunInfo, command: str) -> CheckResult | list[CheckResult]:
    """Return the faults of a run's trials; `command` resumes it, or follows a running training."""
    if run.ends is None or run.planned is None:
        return DAMAGED.result(run=run.run_id, state=run.state)
    unfinished = run.planned - sum(run.ends.values())
    results = []
    for fault, statuses in _STATUSES.items():
        count = sum(run.ends.get(status.value, 0) for status in statuses)
        count += unfinished if fault is INTERRUPTED else 0
        if count:
            results.append(fault.result(run=run.run_id, count=count, planned=run.planned, command=command))
    return results or passed(f"run {run.run_id}: all {run.planned} trials succeeded")
