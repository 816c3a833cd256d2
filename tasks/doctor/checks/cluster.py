"""Checks of the cluster, everything that pods need, the nodes (as `inv nodes`) and the deployed pods."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from remote.cluster.diagnosis.finding import Diagnosis, group
from remote.cluster.diagnosis.nodes import MIN_KUBELET
from remote.cluster.namespace_client import CSI_DRIVER, KINDS, POD, Cluster, Kind
from reports import formatting
from tasks.clients.target_cluster import place_pods
from tasks.cluster.node_list import check_capacity
from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, passed

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
# `kubectl exec` by WebSocket and by SPDY
RUN_PERMISSIONS = ("list", POD, ""), ("get", POD, "exec"), ("create", POD, "exec")
DEPLOY_VERBS = ("get", "create", "patch", "delete")
_DEPLOYED_KINDS = ("ServiceAccount", "ConfigMap", "Secret", "Service", "Role", "RoleBinding", "NetworkPolicy", "Job")
CHECKS, NODE_CHECKS, POD_CHECKS = Checks("cluster"), Checks("nodes"), Checks("pods")

OLD = Fault("Kubernetes {version} is older than 1.29, which our Jobs need", "upgrade the cluster")
NO_PERMISSION = Fault(
    "user {user} may not {rights} in namespace {namespace}",
    "ask the cluster's administrator for these permissions (manifests/base/access.yaml has the role)",
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
NO_CSI = Fault("the cluster has no CSI driver {driver}, which cluster.volume needs", "{volume-driver}")
NO_VOLUME = Fault(
    "no shared volume: results that were not collected are lost with their pods",
    "set cluster.volume.handle, or run `inv collect` before the next `inv deploy`",
    status=CheckStatus.WARN,
)


@CHECKS.register(
    "reachable",
    "Is there a kubeconfig, does the API server answer, does it accept the credentials, is it new enough?",
    OLD,
)
def reachable(context: CheckContext) -> CheckResult:
    version = context.version.get_or_raise()[0]
    match = _VERSION.match(version)
    if match is None or (int(match[1]), int(match[2])) < MIN_KUBELET:
        return OLD.result(version=version)
    return passed(f"Kubernetes {version}: {context.cluster.get_or_skip().target}")


@CHECKS.register(
    "rights",
    "May this account run trials, and deploy? Each verb on each resource is checked.",
    NO_PERMISSION,
    CANNOT_DEPLOY,
)
def rights(context: CheckContext) -> CheckResult:
    deploy_permissions = [(verb, KINDS[kind], "") for kind in _DEPLOYED_KINDS for verb in DEPLOY_VERBS]
    with context.open_cluster() as cluster:
        to_run = _missing_permissions(cluster, RUN_PERMISSIONS)
        to_deploy = _missing_permissions(cluster, deploy_permissions)
    values = {"user": cluster.target.user, "namespace": cluster.target.namespace}
    if to_run:
        return NO_PERMISSION.result(rights=", ".join(to_run), **values)
    if to_deploy:
        return CANNOT_DEPLOY.result(rights=", ".join([*to_deploy[:6], *["..."] * (len(to_deploy) > 6)]), **values)
    count = len(RUN_PERMISSIONS) + len(deploy_permissions)
    return passed(f"{values['user']} may run trials and deploy: {count} permissions checked")


def _missing_permissions(cluster: Cluster, permissions: Sequence[tuple[str, Kind, str]]) -> list[str]:
    """Return the missing ones of `permissions`, (verb, kind, subresource), as text."""
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(lambda permission: cluster.is_allowed(*permission), permissions))
    return [
        f"{verb} {kind.plural}{'/' + sub if sub else ''}"
        for (verb, kind, sub), is_allowed in zip(permissions, answers, strict=True)
        if not is_allowed
    ]


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


@CHECKS.register("storage", "Is there a shared volume, and the driver for it?", NO_CSI, NO_VOLUME)
def storage(context: CheckContext) -> CheckResult:
    with context.open_cluster() as cluster:
        handle = place_pods(context.settings.cluster, cluster.provider).section.volume.handle
        if handle is None:
            return NO_VOLUME.result()
        source = cluster.provider.volume_source(handle) or {}
        driver = (source.get("csi") or {}).get("driver")
        if driver is not None and not cluster.has_object(CSI_DRIVER, driver):
            return NO_CSI.result(cluster.provider, driver=driver)
    return passed(f"the shared volume is {', '.join(source)}, and its driver is installed")


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
    return _failures(findings) or passed(f"no problem on {formatting.count(len(reports), 'node')}")


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


def _failures(findings: Iterable[Diagnosis]) -> list[CheckResult]:
    return [
        CheckResult(
            status=CheckStatus.FAIL,
            message=f"{finding.subject}: {finding.reason}",
            remedy=finding.remedy,
            is_transient=finding.patience_sec is None,
        )
        for finding in group(findings)
    ]
