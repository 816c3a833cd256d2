"""The cluster: does it answer, may we, and has it what pods need before one is there?"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from remote.cluster.errors import Forbidden
from remote.cluster.kubectl import not_installed
from remote.cluster.quantities import amount
from remote.cluster.resource_kinds import CSI_DRIVER, KINDS, POD, RESOURCE_QUOTA, RUNTIME_CLASS
from remote.hosts.process import CannotStart, run_program
from tasks.clients.cluster import errors
from tasks.cluster.checks import CONTROLLERS, EXEC, missing_rights
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Fault, Skipped, fine
from tasks.settings.load import Settings

_ASK_SEC = 15.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_SKEW = 1  # minor versions on either side that kubectl supports (kubernetes.io, version skew policy)
LEAST = (1, 29)  # backoffLimitPerIndex is on by default
FSS_DRIVER = "fss.csi.oraclecloud.com"
RUNS, DEPLOYS = (("list", POD, ""), *EXEC), ("get", "create", "patch", "delete")
_CHANGED = ("ServiceAccount", "ConfigMap", "Secret", "Service", "Role", "RoleBinding", "NetworkPolicy", "Job")
CHECKS = Checks("cluster")

OLD = Fault(what="Kubernetes {version}, older than 1.29, which Jobs of ours need", remedy="upgrade the cluster")
SKEWED = Fault(
    what="kubectl {ours} beside a server of {theirs}: more than one minor version apart is not supported",
    remedy="install kubectl {theirs}",
    mark=CheckStatus.CAREFUL,
)
MAY_NOT_RUN = Fault(
    what="{user} may not {rights} in namespace {namespace}",
    remedy="ask the cluster's administrator for these rights (manifests/base/access.yaml has the role)",
)
MAY_NOT_DEPLOY = Fault(
    what="{user} may not {rights} in namespace {namespace}: enough to bench, not to deploy",
    remedy="ask for the role admin in that namespace, or have somebody else type `inv deploy`",
    mark=CheckStatus.CAREFUL,
)
NO_NAMESPACE = Fault(what="there is no namespace {namespace}", remedy="`inv deploy` makes it", mark=CheckStatus.CAREFUL)
TERMINATING = Fault(
    what="namespace {namespace} is being deleted",
    remedy="`kubectl delete jobs --all -n {namespace}` frees it: a pod of an index waits for its replacement",
)
NO_SECRET = Fault(
    what="namespace {namespace} has no pull secret {secret}",
    remedy="`inv deploy` makes it, with the auth token on standard input; a public image needs none",
    mark=CheckStatus.CAREFUL,
)
QUOTA = Fault(
    what="quota {quota}: {free} of {resource} left, and {count} more pods need {need}",
    remedy="free what uses it, ask for more (`kubectl describe resourcequota`), or lower fleet.size",
)
QUOTA_LIMITS = Fault(
    what="quota {quota} counts limits.cpu, and our pods have none: they are refused", remedy="set cluster.cpu_limit"
)
NO_CSI = Fault(
    what="cluster.fss.volume_handle is set, and the cluster has no CSI driver {driver}",
    remedy="have it installed (on OKE: the add-on for File Storage), or set cluster.fss.volume_handle to null",
)
NO_VOLUME = Fault(
    what="no shared volume: results live and die with the pods until they are collected",
    remedy="set cluster.fss.volume_handle, or type `inv collect` before anything is deployed anew",
    mark=CheckStatus.CAREFUL,
)
NO_CONTROLLER = Fault(
    what="the overlay {overlay} needs {controller}, which is not installed",
    remedy="set cluster.overlay to job-4gpu, which does the same without it; or have it installed",
)
NO_DNS = Fault(
    what="none of the {count} pods of the cluster's DNS is Ready: ranks do not find each other by name",
    remedy="`kubectl -n kube-system get pods -l k8s-app=kube-dns` says why; on OKE restart them",
    passes=True,
)


@CHECKS.asks(
    "reachable",
    "Is there a kubeconfig, does the API server answer, does it take the credentials, is it new enough?",
    OLD,
    others=examples.cluster,
)
def reachable(facts: CheckContext) -> CheckResult:
    version = facts.version.first()[0]
    if _minor(version) < LEAST:
        return OLD.seen(version=version)
    return fine(f"Kubernetes {version}: {facts.cluster.get().target}")


@CHECKS.asks("kubectl", "Is kubectl here, and within one minor version of the server?", SKEWED)
def kubectl(facts: CheckContext) -> CheckResult:
    facts.cluster.get()
    try:
        ended = run_program(
            ("kubectl", "version", "--client", "-o", "json"), label="kubectl version", timeout_sec=_ASK_SEC
        )
        ours = str(json.loads(ended.stdout)["clientVersion"]["gitVersion"])
    except CannotStart as error:
        with errors():
            raise not_installed(error) from None
    except (ValueError, KeyError, TypeError):
        return fine("there, of a version that it does not say")
    theirs = facts.version.get()[0]
    (major, minor), (their_major, their_minor) = _minor(ours), _minor(theirs)
    if major != their_major or abs(minor - their_minor) > _SKEW:
        return SKEWED.seen(ours=ours, theirs=theirs)
    return fine(f"{ours}, within one minor version of the server's {theirs}")


def _minor(version: str) -> tuple[int, int]:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@CHECKS.asks(
    "rights",
    "May this account run trials, and deploy? Each verb on each resource is asked.",
    MAY_NOT_RUN,
    MAY_NOT_DEPLOY,
)
def rights(facts: CheckContext) -> CheckResult:
    asked = [(verb, KINDS[kind], "") for kind in _CHANGED for verb in DEPLOYS]
    with facts.reached() as cluster:
        to_run, to_deploy = missing_rights(cluster, RUNS), missing_rights(cluster, asked)
    values = {"user": cluster.target.user, "namespace": cluster.target.namespace}
    if to_run:
        return MAY_NOT_RUN.seen(rights=", ".join(to_run), **values)
    if to_deploy:
        return MAY_NOT_DEPLOY.seen(rights=_listed(to_deploy), **values)
    return fine(f"{values['user']} may run trials and deploy: {len(RUNS) + len(asked)} rights asked one by one")


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@CHECKS.asks("namespace", "Is the namespace there, and which Pod Security has it?", NO_NAMESPACE, TERMINATING)
def namespace(facts: CheckContext) -> CheckResult:
    with facts.reached() as cluster:
        name, found = cluster.target.namespace, cluster.namespace()
    if found is None:
        return NO_NAMESPACE.seen(namespace=name)
    if found["metadata"].get("deletionTimestamp"):
        return TERMINATING.seen(namespace=name)
    level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "the cluster's default")
    return fine(f"{name}, Pod Security {level}; our pods meet restricted")


@CHECKS.asks("pull secret", "Has it the registry's login?", NO_SECRET)
def secret(facts: CheckContext) -> CheckResult:
    name = facts.settings.cluster.pull_secret
    with facts.reached() as cluster:
        if name is None:
            raise Skipped("cluster.pull_secret is null: the image is public")
        if not cluster.has_secret(name):
            return NO_SECRET.seen(namespace=cluster.target.namespace, secret=name)
    return fine(f"pull secret {name} is there")


@CHECKS.asks("quota", "Do the namespace's quotas leave room for the pods that are still missing?", QUOTA, QUOTA_LIMITS)
def quota(facts: CheckContext) -> CheckResult | list[CheckResult]:
    with facts.reached() as cluster:
        quotas, pods = cluster.every(RESOURCE_QUOTA), cluster.pods()
    if not quotas:
        return fine("none in the namespace")
    found = [*over(quotas, facts.settings, facts.settings.fleet.size - len(pods))]
    return found or fine(f"{', '.join(quota['metadata']['name'] for quota in quotas)}: room for all pods")


def over(quotas: Sequence[Mapping[str, Any]], settings: Settings, more: int) -> Iterator[CheckResult]:
    """What `more` pods would need beyond the quotas of the namespace."""
    section = settings.cluster
    memory, gpus = amount(section.memory), amount(str(section.gpus_per_pod))
    needs = {"requests.cpu": amount(section.cpu), "requests.memory": memory, "limits.memory": memory}
    needs |= {"cpu": needs["requests.cpu"], "memory": memory, "pods": amount("1"), "requests.nvidia.com/gpu": gpus}
    if section.cpu_limit is not None:
        needs["limits.cpu"] = amount(section.cpu_limit)
    for quota in quotas:
        hard, used = quota.get("status", {}).get("hard") or {}, quota.get("status", {}).get("used") or {}
        name = quota["metadata"]["name"]
        if "limits.cpu" in hard and section.cpu_limit is None:
            yield QUOTA_LIMITS.seen(quota=name)
        for resource in needs.keys() & hard.keys():
            free, need = amount(hard[resource]) - amount(used.get(resource, "0")), needs[resource] * more
            if more > 0 and need > free:
                yield QUOTA.seen(quota=name, resource=resource, free=f"{free:f}", need=f"{need:f}", count=more)


@CHECKS.asks("storage", "Is there a shared volume, and the driver for it?", NO_CSI, NO_VOLUME)
def storage(facts: CheckContext) -> CheckResult:
    with facts.reached() as cluster:
        if facts.settings.cluster.fss.volume_handle is None:
            return NO_VOLUME.seen()
        if not cluster.has(CSI_DRIVER, FSS_DRIVER):
            return NO_CSI.seen(driver=FSS_DRIVER)
    return fine(f"the CSI driver {FSS_DRIVER} is there")


@CHECKS.asks("controller", "Is the controller installed that the overlay needs?", NO_CONTROLLER)
def controller(facts: CheckContext) -> CheckResult:
    overlay = facts.settings.cluster.overlay
    with facts.reached() as cluster:
        if overlay not in CONTROLLERS:
            return fine(f"the overlay {overlay} needs none beside Kubernetes' own")
        group, name = CONTROLLERS[overlay]
        if not cluster.knows_group(group):
            return NO_CONTROLLER.seen(overlay=overlay, controller=name)
    return fine(f"{name} is installed")


@CHECKS.asks("runtime class", "Is there a runtime class nvidia?")
def runtime(facts: CheckContext) -> CheckResult:
    with facts.reached() as cluster:
        try:
            names = [str(one["metadata"]["name"]) for one in cluster.every(RUNTIME_CLASS)]
        except Forbidden as error:
            raise Skipped(str(error).partition("; ")[0]) from None
    has = "there is a runtime class nvidia" if "nvidia" in names else "no runtime class nvidia"
    return fine(f"{has}; our pods name none: the nodes' own runtime must be NVIDIA's, as on OKE's GPU images")


@CHECKS.asks("DNS", "Do names resolve in the cluster?", NO_DNS)
def dns(facts: CheckContext) -> CheckResult:
    with facts.reached() as cluster:
        try:
            pods = cluster.every(POD, namespace="kube-system", selector="k8s-app=kube-dns")
        except Forbidden as error:
            raise Skipped(str(error).partition("; ")[0]) from None
    if not pods:
        raise Skipped("no pod in kube-system has the label k8s-app=kube-dns")
    ready = sum(
        one["type"] == "Ready" and one["status"] == "True"
        for pod in pods
        for one in pod.get("status", {}).get("conditions") or []
    )
    return fine(f"{ready} of {len(pods)} pods of DNS are Ready") if ready else NO_DNS.seen(count=len(pods))
