"""Examples of faults that other modules report, as (message, remedy), by the title of the check that passes them on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from remote.agent.shared.errors import engine_access_error
from remote.cluster.diagnosis.image_pull import known_causes
from remote.cluster.diagnosis.nodes import GPU_PRODUCT_LABEL, GPU_RESOURCE, INSTANCE_TYPE_LABEL, DriverRange
from remote.cluster.diagnosis.pods import diagnose_claim, diagnose_job, diagnose_pod
from remote.hosts.base import HostError
from remote.hosts.pods.kubectl import not_installed_error, to_cluster_error
from remote.image.engine import DiskInfo, EngineFacts, FolderInfo
from remote.image.plan import SpaceNeed, check_filesystems, check_free_space, model_folders
from remote.image.vm_info import VmFacts
from remote.providers import GENERIC
from tasks.doctor.checks.cluster import CAUSES as NODE_CAUSES
from tasks.faults import from_error
from tests.unit.remote.cluster.test_nodes import NODE, READY, need, pod, report

Rows = Sequence[tuple[str, str]]
CUDA_12_8_1 = DriverRange(minimum=570, older=(535, 550, 560, 565))  # the drivers of its base image


def _row(error: object) -> tuple[str, str]:
    result = from_error(error)
    return result.message, result.remedy


def _error_row(function: Callable[[], object]) -> tuple[str, str]:
    """Call the function and return the row of its error."""
    try:
        function()
    except HostError as error:
        return _row(error)
    raise AssertionError("the example does not raise an error")


def cluster() -> Rows:
    """Return the rows for the API server and the login, from kubectl's messages."""
    login = ("getting credentials: exec: executable oci failed", "Unauthorized", "x509: certificate signed by unknown")
    network = ("connection refused", "no such host", "i/o timeout")
    missing = not_installed_error(FileNotFoundError(2, "No such file or directory", "kubectl"))
    return [*(_row(to_cluster_error("kubectl", message)) for message in (*login, *network)), _row(missing)]


def nodes() -> dict[str, Rows]:
    """Return the rows of each check of the nodes."""
    causes = {"enough": ("instance-type",), **{name: check_causes for name, (_, check_causes) in NODE_CAUSES.items()}}
    findings = [*_findings()]
    return {
        f"nodes {name}": [(finding.reason, finding.remedy) for finding in findings if finding.cause in included]
        for name, included in causes.items()
    }


_ALLOCATABLE: dict[str, str] = NODE["status"]["allocatable"]
_LABELS: dict[str, str] = NODE["metadata"]["labels"]
# Differences to the node of the nodes' tests, and to the requirements of its pod.
_NODES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (
        {"status__conditions": [READY | {"status": "Unknown", "lastTransitionTime": "TIME", "message": "no reports"}]},
        {},
    ),
    ({"status__conditions": [READY | {"status": "True"}, {"type": "DiskPressure", "status": "True"}]}, {}),
    ({"spec__unschedulable": True}, {}),
    ({"spec__taints": [{"key": "TAINT", "value": "VALUE", "effect": "NoSchedule"}]}, {}),
    ({"status__allocatable": _ALLOCATABLE | {GPU_RESOURCE: "0"}}, {}),
    ({"status__allocatable": _ALLOCATABLE | {GPU_RESOURCE: "0", "nvidia.com/mig-1g.6gb": "4"}}, {}),
    ({"metadata__labels": _LABELS | {GPU_PRODUCT_LABEL: "Tesla-T4"}}, {"gpu_product": "NVIDIA-A10"}),
    ({"metadata__labels": _LABELS | {GPU_PRODUCT_LABEL: "NVIDIA-A10", "nvidia.com/gpu.replicas": "4"}}, {}),
    ({"status__allocatable": _ALLOCATABLE | {"ephemeral-storage": "38Gi"}}, {}),
    ({"status__allocatable": _ALLOCATABLE | {"cpu": "2"}}, {}),
    ({"status__allocatable": _ALLOCATABLE | {"memory": "8Gi"}}, {}),
    ({"status__nodeInfo": {"kubeletVersion": "v1.27.2"}}, {}),
    ({"metadata__labels": _LABELS | {"nvidia.com/cuda.driver.major": "470"}}, {"drivers": CUDA_12_8_1}),
    ({"metadata__labels": {INSTANCE_TYPE_LABEL: "VM.GPU3.1"}}, {}),
)


def _findings() -> Iterator[Any]:
    for changes, requirements in _NODES:
        needs = need(provider=GENERIC, **requirements)
        yield from report(needs=needs, metadata__name="NODE", **changes).findings
    yield from report([pod("POD", "OTHER", gpus=1)], needs=need(provider=GENERIC)).findings


_TERMINATED: tuple[dict[str, Any], ...] = (
    {"reason": "OOMKilled", "exitCode": 137},
    {"reason": "Error", "exitCode": 127},
    {"reason": "Error", "exitCode": 137},
    {"reason": "StartError", "exitCode": 128, "message": "exec format error"},
    {"reason": "Error", "exitCode": 1},
)
_UNSCHEDULED = (
    f"0/4 nodes are available: 4 Insufficient {GPU_RESOURCE}.",
    "0/4 nodes are available: 4 Insufficient memory.",
    "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.",
    "0/4 nodes are available: 4 node(s) had untolerated taint {KEY: VALUE}.",
)
_MOUNTS = (
    "driver name DRIVER not found in the list of registered CSI drivers",
    "mount.nfs: Connection timed out",
    'configmap "NAME" not found',
)
_REJECTED = (
    'pods "POD" is forbidden: exceeded quota: NAME',
    'pods "POD" is forbidden: failed quota: NAME: must specify limits.cpu',
    'pods "POD" is forbidden: violates PodSecurity "restricted:latest"',
)
_CLAIMS = ('storageclass "NAME" not found', "no persistent volumes available for this claim")


def pods() -> Rows:
    """Return the rows for pulls, scheduling, crashes, mounts, rejected pods and claims, from examples of each."""
    meta = {"name": "POD", "uid": "1"}
    findings = []
    for message in _UNSCHEDULED:
        condition = {"type": "PodScheduled", "status": "False", "message": message}
        findings += diagnose_pod({"metadata": meta, "spec": {}, "status": {"conditions": [condition]}}, [])
    for terminated in _TERMINATED:
        container = {"name": "bench", "restartCount": 1, "state": {"terminated": terminated}}
        findings += diagnose_pod({"metadata": meta, "spec": {}, "status": {"containerStatuses": [container]}}, [])
    evicted = {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    findings += diagnose_pod({"metadata": meta, "spec": {}, "status": evicted}, [])
    for message in _MOUNTS:
        findings += diagnose_pod({"metadata": meta, "spec": {}, "status": {}}, [_event("FailedMount", message)])
    for message in _REJECTED:
        findings += diagnose_job({"metadata": meta, "spec": {}, "status": {}}, [_event("FailedCreate", message)])
    for message in _CLAIMS:
        findings += diagnose_claim({"metadata": meta, "status": {"phase": "Pending"}}, [_event("Pending", message)])
    return [*known_causes(), *((finding.reason, finding.remedy) for finding in findings)]


def _event(reason: str, message: str) -> dict[str, Any]:
    return {"metadata": {}, "reason": reason, "message": message, "involvedObject": {"uid": "1"}}


def vm() -> Rows:
    texts = dict.fromkeys(("system", "kernel", "user", "home"), "")
    facts = VmFacts(machine="aarch64", python=(3, 6, 8), groups=(), cores=1, memory_bytes=1, clock=0, **texts)
    return [_row(problem) for problem in facts.problems()]


def engine() -> Rows:
    messages = ("permission denied while trying to connect", "Cannot connect to the Docker daemon")
    return [_row(engine_access_error(message)) for message in messages]


def models() -> Rows:
    model: dict[str, Any] = {"name": "MODEL", "folder": "TMPDIR/qlora-fleet/models/MODEL", "files": []}
    truncated_file = ("model.safetensors", 10, 20, "")
    faults: tuple[dict[str, Any], ...] = (
        {"found": False, "sha256": None},
        {"found": True, "sha256": None},
        {"found": True, "sha256": "", "files": [truncated_file]},
    )
    disks = [DiskInfo(folders=(), models=({**model, **fault},), docker_tmpdir=None) for fault in faults]
    return [_error_row(lambda disk=disk: model_folders(disk)) for disk in disks]  # type: ignore[misc]


def room() -> Rows:
    tmpdir = FolderInfo(path="TMPDIR", exists=True, is_folder=True, kind="ext4", device=1, free_bytes=0, writable=True)
    root = replace(tmpdir, path="DATA-ROOT", device=2)
    facts = EngineFacts(api_version="1.44", data_root="DATA-ROOT", storage_driver="overlay2")
    return [
        _error_row(lambda: check_free_space([SpaceNeed(folder=root, purpose="the image", need_bytes=25_000_000_000)])),
        _error_row(lambda: check_filesystems(replace(tmpdir, exists=False), root, facts)),
        _error_row(lambda: check_filesystems(replace(tmpdir, writable=False), root, facts)),
        _error_row(lambda: check_filesystems(replace(tmpdir, kind="tmpfs"), root, facts)),
        _error_row(lambda: check_filesystems(tmpdir, replace(root, kind="nfs4"), facts)),
    ]


def messages() -> dict[str, list[list[str]]]:
    """Return the rows by the title of their check, without duplicates."""
    rows = {
        "vm connection": vm(),
        "vm engine": engine(),
        "vm models": models(),
        "vm room": room(),
        "cluster reachable": cluster(),
        **nodes(),
        "pods up": pods(),
    }
    return {title: [list(row) for row in dict.fromkeys(same)] for title, same in rows.items()}
