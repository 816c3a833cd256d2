"""Model and data as the workers see them: present, whole, readable."""

from remote.hosts.local import LocalHost
from tasks.clients.workers import inspect, pod_hosts
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Skipped, fine

CHECKS = Checks("models")


@CHECKS.asks(
    "whole", "Does the first worker find model.path and data.path, and are they whole?", others=examples.inputs
)
def whole(facts: CheckContext) -> CheckResult:
    settings = facts.settings
    if settings.fleet.kind == "local":
        folder = settings.root / settings.fleet.local.folder
        found = inspect(settings, [LocalHost(name="worker-0", workdir=str(folder / "worker-0"))])
    else:
        facts.version.get()
        cluster = facts.cluster.get()
        if not cluster.list_of("Job"):
            raise Skipped("no pod is deployed that could be asked")
        found = inspect(settings, pod_hosts(settings, cluster.target)[:1])
    model, data = found["model"], found["data"]
    size = f"{model['parameters'] / 1e6:.0f} M parameters, {model['bytes'] / 1e9:.2f} GB"
    return fine(f"{model['path']}: {size}, whole; {data['path']}: {data['samples']} samples")
