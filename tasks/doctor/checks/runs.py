"""Checks of what trials read and left: model and data as the workers see them, and the newest run."""

from collections.abc import Sequence

from bench.records.status import TrialStatus
from bench.records.units import format_gb
from remote.hosts.host_protocol import Host
from remote.hosts.local import LocalHost
from tasks.clients.workers import bench_program, pod_hosts
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed
from tasks.fleet.plan import input_trial
from tasks.reports.runs import RunInfo, find_runs

CHECKS, MODEL_CHECKS = Checks("runs"), Checks("models")

OUT_OF_MEMORY = Fault(
    "run {run}: {count} of {planned} trials ran out of GPU memory",
    "lower train.micro_batch_size or train.max_seq_len; leave the largest trials out with `inv bench --only=NAMES`",
    status=CheckStatus.WARN,
)
UNSUCCESSFUL = Fault(
    "run {run}: {count} of {planned} trials failed, were lost, preempted or cancelled, or have not ended",
    "`inv report` shows the reason of each; --resume={run} of `inv bench` or `inv train` tries them again",
    status=CheckStatus.WARN,
)
DAMAGED = Fault("run {run} is {state}", "`inv collect --run {run}` fetches it again if its workers still have it")


@CHECKS.register("newest", "How did the trials of the newest run end?", OUT_OF_MEMORY, UNSUCCESSFUL, DAMAGED)
def newest(context: CheckContext) -> CheckResult | list[CheckResult]:
    known_runs = find_runs(context.settings.results_folder)
    if not known_runs:
        raise Skipped(f"there is no run in {context.settings.results_folder} yet: `inv bench --quick` creates one")
    return run_results(known_runs[0])


def run_results(run: RunInfo) -> CheckResult | list[CheckResult]:
    """Return the faults of a run's trials."""
    if run.ends is None or run.planned is None:
        return DAMAGED.result(run=run.run_id, state=run.state)
    if run.state == "running":
        return passed(f"run {run.run_id} is running")
    out_of_memory = run.ends.get(TrialStatus.OUT_OF_MEMORY.value, 0)
    others = run.planned - run.ends.get(TrialStatus.SUCCEEDED.value, 0) - out_of_memory
    counts = {OUT_OF_MEMORY: out_of_memory, UNSUCCESSFUL: others}
    results = [
        fault.result(run=run.run_id, count=count, planned=run.planned) for fault, count in counts.items() if count
    ]
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
