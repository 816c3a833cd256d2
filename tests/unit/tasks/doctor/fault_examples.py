"""Examples of faults that other modules report, as (message, remedy), by the title of the check that passes them on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from remote.agent.shared.errors import engine_access_error
from remote.cluster.diagnosis.finding import Diagnosis
from remote.hosts.host_protocol import HostError
from remote.hosts.pods.kubectl import not_installed_error, to_cluster_error
from remote.image.engine import DiskInfo, EngineFacts, FolderInfo
from remote.image.plan import SpaceNeed, check_data_root, check_free_space, check_tmpdir, model_folders
from remote.image.vm_jobs import VmFacts
from remote.providers import GENERIC
from tasks.faults import from_error
from tests.unit.remote.cluster import test_diagnosis, test_nodes

Rows = Sequence[tuple[str, str]]


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


def first_of_each_cause(findings: Iterable[Diagnosis]) -> dict[str, tuple[str, str]]:
    """Return reason and remedy of the first finding of each cause."""
    rows: dict[str, tuple[str, str]] = {}
    for finding in findings:
        rows.setdefault(finding.cause, (finding.reason, finding.remedy))
    return rows


def nodes() -> dict[str, Rows]:
    """Return the rows of each check of the nodes, from the cases of the nodes' tests."""
    rows = first_of_each_cause(test_nodes.example_findings(provider=GENERIC))
    return {"nodes enough": [rows.pop("instance-type")], "nodes health": list(rows.values())}


def pods() -> Rows:
    """Return the rows for pods, Jobs and claims, from the cases of the diagnosis."""
    rows = first_of_each_cause(test_diagnosis.example_findings()).values()
    return [(reason.replace(test_diagnosis.IMAGE, "IMAGE"), remedy) for reason, remedy in rows]


def vm() -> Rows:
    facts = VmFacts(system="", user="", machine="aarch64", python=(3, 6, 8), cores=1, memory_bytes=1, clock=0)
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
    facts = EngineFacts(data_root="", storage_driver="overlay2")
    need = SpaceNeed(folder=root, purpose="the image", need_bytes=25_000_000_000)
    return [
        _error_row(lambda: check_free_space([need], root.path)),
        _error_row(lambda: check_tmpdir(replace(tmpdir, exists=False))),
        _error_row(lambda: check_tmpdir(replace(tmpdir, writable=False))),
        _error_row(lambda: check_tmpdir(replace(tmpdir, kind="tmpfs"))),
        _error_row(lambda: check_data_root(replace(root, kind="nfs4"), facts)),
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
