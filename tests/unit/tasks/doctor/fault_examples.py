"""Examples of faults that other modules report, as (message, remedy), by the title of the check that passes them on."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from remote.agent.shared.errors import engine_access_error
from remote.cluster.diagnosis.driver import DriverRange
from remote.cluster.diagnosis.image_pull import known_causes
from remote.cluster.diagnosis.nodes import (
    GPU_PRODUCT_LABEL,
    GPU_RESOURCE,
    INSTANCE_TYPE_LABEL,
    NodeRequirements,
    examine,
)
from remote.cluster.diagnosis.pods import diagnose_claim, diagnose_job, diagnose_pod
from remote.cluster.quantities import parse_quantity
from remote.hosts.base import HostError
from remote.hosts.pods.kubectl import not_installed_error, to_cluster_error
from remote.image.engine import DiskInfo, EngineFacts, FolderInfo
from remote.image.plan import SpaceNeed, check_filesystems, check_free_space, model_folders
from remote.image.vm_info import VmFacts
from tasks.doctor.checks.nodes import CAUSES as NODE_CAUSES
from tasks.faults import from_error

Rows = Sequence[tuple[str, str]]
_INSTANCE_TYPE, _PRODUCT = "VM.GPU.A10.1", "NVIDIA-A10"


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


_NODE: dict[str, Any] = {
    "metadata": {"name": "NODE", "labels": {INSTANCE_TYPE_LABEL: _INSTANCE_TYPE}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "30", "memory": "240Gi", "ephemeral-storage": "200Gi", GPU_RESOURCE: "1"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.34.0"},
    },
}
# The differences to _NODE in each example, by path.
_NODE_CHANGES: tuple[dict[str, Any], ...] = (
    {
        "status.conditions": [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "TIME", "message": "no reports"}
        ]
    },
    {"status.conditions": [*_NODE["status"]["conditions"], {"type": "DiskPressure", "status": "True"}]},
    {"spec.unschedulable": True},
    {"spec.taints": [{"key": "TAINT", "value": "VALUE", "effect": "NoSchedule"}]},
    {f"status.allocatable|{GPU_RESOURCE}": "0"},
    {f"status.allocatable|{GPU_RESOURCE}": "0", "status.allocatable|nvidia.com/mig-1g.6gb": "4"},
    {f"metadata.labels|{GPU_PRODUCT_LABEL}": "Tesla-T4"},
    {f"metadata.labels|{GPU_PRODUCT_LABEL}": _PRODUCT, "metadata.labels|nvidia.com/gpu.replicas": "4"},
    {"status.allocatable|ephemeral-storage": "38Gi"},
    {"status.allocatable|cpu": "2"},
    {"status.allocatable|memory": "8Gi"},
    {"status.nodeInfo.kubeletVersion": "v1.27.2"},
    {"metadata.labels|nvidia.com/cuda.driver.major": "470"},
    {f"metadata.labels|{INSTANCE_TYPE_LABEL}": "VM.GPU3.1"},
)
_POD = {"metadata": {"name": "POD", "namespace": "OTHER", "labels": {}}, "status": {"phase": "Running"}}
_GPU_POD_SPEC = {
    "nodeName": "NODE",
    "containers": [{"resources": {"requests": {GPU_RESOURCE: "1", "cpu": "1", "memory": "1Gi"}}}],
}


def _findings() -> Iterator[Any]:
    need = NodeRequirements(
        instance_type=_INSTANCE_TYPE,
        preemptible=False,
        cpu=Decimal(4),
        memory=parse_quantity("24Gi"),
        scratch=parse_quantity("10Gi"),
        tolerations=[{"key": GPU_RESOURCE, "operator": "Exists"}],
        namespace="OURS",
        image="HOST/REPOSITORY@sha256:DIGEST",
        image_bytes=35 * 2**30,
        drivers=DriverRange(minimum=570, older=(535, 550, 560, 565)),  # those of CUDA 12.8.1's base image
    )
    for changes in _NODE_CHANGES:
        is_other_gpu = changes.get(f"metadata.labels|{GPU_PRODUCT_LABEL}") == "Tesla-T4"
        requirements = replace(need, gpu_product=_PRODUCT) if is_other_gpu else need
        for report in examine([_changed(_NODE, changes)], [], requirements):
            yield from report.findings
    for report in examine([_NODE], [{**_POD, "spec": _GPU_POD_SPEC}], need):
        yield from report.findings


def _changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with other values. Path `a.b|c` is the key c, which may contain dots, of the value at a.b."""
    result: dict[str, Any] = copy.deepcopy(dict(base))
    for path, value in changes.items():
        dotted, separator, last_key = path.partition("|")
        keys = dotted.split(".")
        if not separator:
            last_key = keys.pop()
        parent = result
        for key in keys:
            parent = parent[key]
        parent[last_key] = value
    return result


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
