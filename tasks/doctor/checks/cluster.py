"""Checks of the cluster, everything that pods need, the nodes (as `inv nodes`) and the deployed pods."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.records import schema
from remote.cluster.diagnosis.finding import Diagnosis, group
from remote.cluster.diagnosis.nodes import MIN_KUBELET
from remote.cluster.namespace_client import KINDS, POD, RESOURCE_QUOTA
from remote.cluster.quantities import parse_quantity
from remote.hosts.local_program import CannotStart, run_program
from remote.hosts.pods.kubectl import not_installed_error
from reports import formatting
from tasks.clients.target_cluster import place_pods
from tasks.cluster.checks import (
    EXEC_PERMISSIONS,
    NO_CONTROLLER,
    NO_CSI,
    NO_PERMISSION,
    NO_SECRET,
    missing_controller,
    missing_driver,
    missing_permissions,
)
from tasks.cluster.node_list import check_capacity
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed
from tasks.settings.layers import Settings

_KUBECTL_TIMEOUT_SEC = 15.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_MAX_MINOR_SKEW = 1  # minor versions, older or newer (kubernetes.io, version skew policy of kubectl)
RUN_PERMISSIONS, DEPLOY_VERBS = (("list", POD, ""), *EXEC_PERMISSIONS), ("get", "create", "patch", "delete")
_DEPLOYED_KINDS = ("ServiceAccount", "ConfigMap", "Secret", "Service", "Role", "RoleBinding", "NetworkPolicy", "Job")
CHECKS, NODE_CHECKS, POD_CHECKS = Checks("cluster"), Checks("nodes"), Checks("pods")

OLD = Fault("Kubernetes {version} is older than 1.29, which our Jobs need", "upgrade the cluster")
SKEWED = Fault(
    "kubectl {client} with server {server}: a skew of more than one minor version is not supported",
    "install kubectl {server}",
    status=CheckStatus.WARN,
)
CANNOT_DEPLOY = Fault(
    "user {user} may not {rights} in namespace {namespace}: enough to run trials, not to deploy",
    "ask for the role admin in that namespace, or ask someone who has it to run `inv deploy`",
    status=CheckStatus.WARN,
)
NO_NAMESPACE = Fault("there is no namespace {namespace}", "`inv deploy` creates it", status=CheckStatus.WARN)
TERMINATING = Fault(
    "namespace {namespace} is being deleted",
    "`kubectl delete jobs --all -n {namespace}`: pods of an indexed Job wait for their replacements",
)
QUOTA = Fault(
    "quota {quota}: {free} of {resource} left, but {count} more pods need {need}",
    "free some, ask for a larger quota (`kubectl describe resourcequota`), or lower fleet.size",
)
QUOTA_LIMITS = Fault(
    "quota {quota} counts limits.cpu, and our pods have none: they are rejected", "set cluster.cpu_limit"
)
NO_VOLUME = Fault(
    "no shared volume: results that were not collected are lost with their pods",
    "set cluster.volume.handle, or run `inv collect` before the next `inv deploy`",
    status=CheckStatus.WARN,
)
NO_DNS = Fault(
    "none of the {count} pods of the cluster's DNS is Ready: ranks cannot resolve each other's names",
    "{dns}",
    is_transient=True,
)


@CHECKS.register(
    "reachable",
    "Is there a kubeconfig, does the API server answer, does it accept the credentials, is it new enough?",
    OLD,
)
def reachable(context: CheckContext) -> CheckResult:
    version = context.version.get_or_raise()[0]
    if _version_numbers(version) < MIN_KUBELET:
        return OLD.result(version=version)
    return passed(f"Kubernetes {version}: {context.cluster.get_or_skip().target}")


@CHECKS.register("kubectl", "Is kubectl installed, and within one minor version of the server?", SKEWED)
def kubectl(context: CheckContext) -> CheckResult:
    context.cluster.get_or_skip()
    try:
        completed = run_program(
            ("kubectl", "version", "--client", "-o", "json"), label="kubectl version", timeout_sec=_KUBECTL_TIMEOUT_SEC
        )
        client = str(schema.parse_object(completed.stdout)["clientVersion"]["gitVersion"])
    except CannotStart as error:
        raise not_installed_error(error) from error
    except (ValueError, KeyError, TypeError):
        return passed("installed, version unknown")
    server = context.version.get_or_skip()[0]
    (major, minor), (server_major, server_minor) = _version_numbers(client), _version_numbers(server)
    if major != server_major or abs(minor - server_minor) > _MAX_MINOR_SKEW:
        return SKEWED.result(client=client, server=server)
    return passed(f"{client}, within one minor version of server {server}")


def _version_numbers(version: str) -> tuple[int, int]:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@CHECKS.register(
    "rights",
    "May this account run trials, and deploy? Each verb on each resource is checked.",
    NO_PERMISSION,
    CANNOT_DEPLOY,
)
def rights(context: CheckContext) -> CheckResult:
    deploy_permissions = [(verb, KINDS[kind], "") for kind in _DEPLOYED_KINDS for verb in DEPLOY_VERBS]
    with context.open_cluster() as cluster:
        to_run = missing_permissions(cluster, RUN_PERMISSIONS)
        to_deploy = missing_permissions(cluster, deploy_permissions)
    values = {"user": cluster.target.user, "namespace": cluster.target.namespace}
    if to_run:
        return NO_PERMISSION.result(rights=", ".join(to_run), **values)
    if to_deploy:
        return CANNOT_DEPLOY.result(rights=_first_names(to_deploy), **values)
    count = len(RUN_PERMISSIONS) + len(deploy_permissions)
    return passed(f"{values['user']} may run trials and deploy: {count} permissions checked")


def _first_names(names: Sequence[str], maximum: int = 6) -> str:
    more = f" and {len(names) - maximum} more" if len(names) > maximum else ""
    return ", ".join(names[:maximum]) + more


@CHECKS.register(
    "namespace", "Does the namespace exist, and what is its Pod Security level?", NO_NAMESPACE, TERMINATING
)
def namespace(context: CheckContext) -> CheckResult:
    with context.open_cluster() as cluster:
        name, live_namespace = cluster.target.namespace, cluster.namespace()
    if live_namespace is None:
        return NO_NAMESPACE.result(namespace=name)
    if live_namespace["metadata"].get("deletionTimestamp"):
        return TERMINATING.result(namespace=name)
    level = (live_namespace["metadata"].get("labels") or {}).get(
        "pod-security.kubernetes.io/enforce", "the cluster's default"
    )
    return passed(f"{name}, Pod Security {level}; our pods meet restricted")


@CHECKS.register("pull secret", "Does the namespace have the registry's login?", NO_SECRET)
def secret(context: CheckContext) -> CheckResult:
    with context.open_cluster() as cluster:
        name = place_pods(context.settings.cluster, cluster.provider).pull_secret
        if name is None:
            raise Skipped("cluster.pull_secret is null: the image is public")
        if not cluster.has_secret(name):
            return NO_SECRET.result(cluster.provider, namespace=cluster.target.namespace, secret=name)
    return passed(f"pull secret {name} exists")


@CHECKS.register(
    "quota", "Do the namespace's quotas leave room for the pods that are still missing?", QUOTA, QUOTA_LIMITS
)
def quota(context: CheckContext) -> CheckResult | list[CheckResult]:
    with context.open_cluster() as cluster:
        quotas, pods = cluster.list_all(RESOURCE_QUOTA), cluster.pods()
    if not quotas:
        return passed("no quota in the namespace")
    faults = [*quota_faults(quotas, context.settings, context.settings.fleet.size - len(pods))]
    return faults or passed(f"{', '.join(quota['metadata']['name'] for quota in quotas)}: room for all pods")


def quota_faults(quotas: Sequence[Mapping[str, Any]], settings: Settings, missing_pods: int) -> Iterator[CheckResult]:
    """Yield the quotas of the namespace that `missing_pods` more pods would exceed."""
    section = settings.cluster
    memory, gpus = parse_quantity(section.memory), parse_quantity(str(section.gpus_per_pod))
    needs = {"requests.cpu": parse_quantity(section.cpu), "requests.memory": memory, "limits.memory": memory}
    needs |= {
        "cpu": needs["requests.cpu"],
        "memory": memory,
        "pods": parse_quantity("1"),
        "requests.nvidia.com/gpu": gpus,
    }
    if section.cpu_limit is not None:
        needs["limits.cpu"] = parse_quantity(section.cpu_limit)
    for quota in quotas:
        hard, used = quota.get("status", {}).get("hard") or {}, quota.get("status", {}).get("used") or {}
        name = quota["metadata"]["name"]
        if "limits.cpu" in hard and section.cpu_limit is None:
            yield QUOTA_LIMITS.result(quota=name)
        for resource in needs.keys() & hard.keys():
            free, need = (
                parse_quantity(hard[resource]) - parse_quantity(used.get(resource, "0")),
                needs[resource] * missing_pods,
            )
            if missing_pods > 0 and need > free:
                yield QUOTA.result(
                    quota=name, resource=resource, free=f"{free:f}", need=f"{need:f}", count=missing_pods
                )


@CHECKS.register("storage", "Is there a shared volume, and the driver for it?", NO_CSI, NO_VOLUME)
def storage(context: CheckContext) -> CheckResult:
    with context.open_cluster() as cluster:
        handle = place_pods(context.settings.cluster, cluster.provider).section.volume.handle
        if handle is None:
            return NO_VOLUME.result()
        source = cluster.provider.volume_source(handle) or {}
        if driver := missing_driver(cluster, source):
            return NO_CSI.result(cluster.provider, driver=driver)
    return passed(f"the shared volume is {', '.join(source)}, and its driver is installed")


@CHECKS.register("controller", "Is the overlay's controller installed?", NO_CONTROLLER)
def controller(context: CheckContext) -> CheckResult:
    overlay = context.settings.cluster.overlay
    with context.open_cluster() as cluster:
        if missing := missing_controller(cluster, overlay):
            return NO_CONTROLLER.result(overlay=overlay, controller=missing)
    return passed(f"the controllers of the overlay {overlay} are installed")


@CHECKS.register("DNS", "Do names resolve in the cluster?", NO_DNS)
def dns(context: CheckContext) -> CheckResult:
    with context.open_cluster() as cluster:
        pods = cluster.list_all(POD, namespace="kube-system", selector="k8s-app=kube-dns")
    if not pods:
        raise Skipped("no pod in kube-system has the label k8s-app=kube-dns")
    ready = sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for pod in pods
        for condition in pod.get("status", {}).get("conditions") or []
    )
    return (
        passed(f"{ready} of {len(pods)} pods of DNS are Ready")
        if ready
        else NO_DNS.result(cluster.provider, count=len(pods))
    )


@NODE_CHECKS.register("enough", "Do as many nodes qualify as the fleet has pods, with one kind of GPU?")
def enough(context: CheckContext) -> CheckResult:
    settings, reports = context.settings, context.nodes.get_or_raise()
    with context.open_cluster() as cluster:
        placement = place_pods(settings.cluster, cluster.provider)
    return passed(check_capacity(placement, settings.fleet.size, reports))


@NODE_CHECKS.register(
    "health", "Are they Ready, with whole free GPUs, room, versions new enough, and no taint or fault of the hardware?"
)
def health(context: CheckContext) -> CheckResult | list[CheckResult]:
    """Return one result for all nodes with the same finding."""
    reports = [report for report in context.nodes.get_or_skip() if report.is_candidate]
    if not reports:
        raise Skipped("see nodes enough")
    findings = [finding for report in reports for finding in report.findings]
    warnings = [warning for report in reports for warning in report.warnings]
    results = [*_failures(findings), *_failures(warnings, CheckStatus.WARN)]
    return results or passed(f"no problem on {formatting.count(len(reports), 'node')}")


@POD_CHECKS.register("up", "Is every deployed pod up, and if not, why? Pulls, scheduling, limits, mounts, crashes.")
def up(context: CheckContext) -> CheckResult | list[CheckResult]:
    with context.open_cluster() as cluster:
        state = cluster.pod_fleet()
        if not state.rows:
            raise Skipped(f"nothing is deployed in namespace {cluster.target.namespace}: `inv deploy`")
    if state.all_findings or state.is_up:
        return _failures(state.all_findings) or passed(f"{state.up_count} of {len(state.rows)} pods are up")
    pending = ", ".join(f"{row.job}[{row.index}] {row.state}" for row in state.rows if not row.is_up)
    return CheckResult(
        status=CheckStatus.WARN,
        message=f"{state.up_count} of {len(state.rows)} pods are up: {pending}",
        remedy="`inv deploy` waits for them",
    )


def _failures(findings: Iterable[Diagnosis], status: CheckStatus = CheckStatus.FAIL) -> list[CheckResult]:
    return [
        CheckResult(
            status=status,
            message=f"{finding.subject}: {finding.reason}",
            remedy=finding.remedy,
            is_transient=finding.patience_sec is None,
        )
        for finding in group(findings)
    ]
