"""Checks of what trials read and left: model and data as the workers see them, and the newest run."""

import contextlib
from collections.abc import Sequence

from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.units import format_gb
from remote.hosts.host_protocol import Host
from remote.hosts.local import LocalHost
from tasks.clients.workers import bench_program, pod_hosts
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed
from tasks.fleet.plan import input_trial
from tasks.fleet.run_store import resume_command
from tasks.reports.runs import RunInfo, find_runs

CHECKS, MODEL_CHECKS = Checks("runs"), Checks("models")

OUT_OF_MEMORY = Fault(
    "run {run}: {count} of {planned} trials ran out of GPU memory",
    "lower train.micro_batch_size or train.max_seq_len; leave the largest trials out with `inv bench --only=NAMES`",
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
    INTERRUPTED: tuple(status for status in TrialStatus if status.is_external),
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
    if run.state == "running":
        return passed(f"run {run.run_id} is running")
    unfinished = run.planned - sum(run.ends.values())
    results = []
    for fault, statuses in _STATUSES.items():
        count = sum(run.ends.get(status.value, 0) for status in statuses)
        count += unfinished if fault is INTERRUPTED else 0
        if count:
            results.append(fault.result(run=run.run_id, count=count, planned=run.planned, command=command))
    return results or passed(f"run {run.run_id}: all {run.planned} trials succeeded")


@MODEL_CHECKS.register("whole", "Does the first worker find model.path and data.path, and are they complete?")
def whole(context: CheckContext) -> CheckResult:
    settings = context.settings
    hosts: Sequence[Host]
    if settings.connector.is_local:
        folder = settings.resolve_path(settings.fleet.local.folder)
        hosts = [LocalHost(name="worker-0", workdir=str(folder / "worker-0"))]
    else:
        context.version.get_or_skip()
        cluster = context.cluster.get_or_skip()
        if not cluster.list_fleet_objects("Job"):
            raise Skipped("no pod is deployed")
        hosts = pod_hosts(cluster.target, settings.fleet.pods, 1)
    inputs = bench_program(settings).inspect(hosts, [input_trial(settings)])
    model, data = inputs["model"], inputs["data"]
    size = f"{model['parameters'] / 1e6:.0f} M parameters, {format_gb(model['bytes'], 2)}"
    return passed(f"{model['path']}: {size}, complete; {data['path']}: {data['samples']} samples")
