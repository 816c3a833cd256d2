"""Check of model and data as seen by the workers: present, complete, readable."""

from remote.hosts.local import LocalHost
from tasks.clients.workers import inspect, pod_hosts
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.faults import CheckResult, Skipped, passed

CHECKS = Checks("models")


@CHECKS.register("whole", "Does the first worker find model.path and data.path, and are they complete?")
def whole(context: CheckContext) -> CheckResult:
    settings = context.settings
    if settings.connector.is_local:
        folder = settings.resolve_path(settings.fleet.local.folder)
        inputs = inspect(settings, [LocalHost(name="worker-0", workdir=str(folder / "worker-0"))])
    else:
        context.version.get_or_skip()
        cluster = context.cluster.get_or_skip()
        if not cluster.list_fleet_objects("Job"):
            raise Skipped("no pod is deployed")
        inputs = inspect(settings, pod_hosts(settings, cluster.target)[:1])
    model, data = inputs["model"], inputs["data"]
    size = f"{model['parameters'] / 1e6:.0f} M parameters, {model['bytes'] / 1e9:.2f} GB"
    return passed(f"{model['path']}: {size}, complete; {data['path']}: {data['samples']} samples")
