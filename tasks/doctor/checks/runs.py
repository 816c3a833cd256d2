"""The newest run: how its trials ended, and whether its results are here."""

from bench.records.result import TrialStatus
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Fault, Skipped, fine
from tasks.reports.runs import KnownRun, runs

CHECKS = Checks("runs")

OUT_OF_MEMORY = Fault(
    what="run {run}: {count} of {planned} trials ran out of GPU memory",
    remedy="`inv tune` searches among what fits; or lower micro_batch_size or max_seq_len",
    mark=CheckStatus.CAREFUL,
)
FAILED = Fault(
    what="run {run}: {count} of {planned} trials failed",
    remedy="`inv report` names the reason of each",
    mark=CheckStatus.CAREFUL,
)
INTERRUPTED = Fault(
    what="run {run}: {count} of {planned} trials were lost, preempted or cancelled, or have not ended",
    remedy="`inv bench --resume={run}` goes on",
    mark=CheckStatus.CAREFUL,
)
DAMAGED = Fault(
    what="run {run} is {state}", remedy="`inv collect --run {run}` brings it again where its workers still have it"
)
_ENDS = {  # by the fault that says them
    OUT_OF_MEMORY: (TrialStatus.OUT_OF_MEMORY,),
    FAILED: (TrialStatus.FAILED, TrialStatus.TIMED_OUT),
    INTERRUPTED: (TrialStatus.LOST, TrialStatus.PREEMPTED, TrialStatus.CANCELLED),
}


@CHECKS.asks("newest", "How did the trials of the newest run end?", *_ENDS, DAMAGED)
def newest(facts: CheckContext) -> CheckResult | list[CheckResult]:
    found = runs(facts.settings.results_folder)
    if not found:
        raise Skipped(f"there is no run in {facts.settings.results_folder} yet: `inv bench --quick` makes one")
    return said_of(found[0])


def said_of(run: KnownRun) -> CheckResult | list[CheckResult]:
    """What a run's ends mean."""
    if run.ends is None or run.planned is None:
        return DAMAGED.seen(run=run.run_id, state=run.state)
    open_ends = run.planned - sum(run.ends.values())
    answers = []
    for fault, ends in _ENDS.items():
        count = sum(run.ends.get(end.value, 0) for end in ends) + (open_ends if fault is INTERRUPTED else 0)
        if count:
            answers.append(fault.seen(run=run.run_id, count=count, planned=run.planned))
    return answers or fine(f"run {run.run_id}: all {run.planned} trials succeeded")
