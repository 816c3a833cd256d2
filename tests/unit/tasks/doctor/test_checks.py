"""Tests of the faults of each check, with their messages and remedies."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records.status import TrialStatus
from remote.image.engine import FolderInfo
from remote.providers import GENERIC, PROVIDERS
from tasks.doctor.check import run_check
from tasks.doctor.checks import cluster, machine, oci, runs, settings, vm
from tasks.doctor.doctor import all_checks
from tasks.errors import UsageError
from tasks.faults import CheckResult, CheckStatus, Fault
from tasks.reports.runs import RunInfo
from tests.support.cases import Case, load_cases
from tests.unit.remote.cluster.test_nodes import NODE
from tests.unit.tasks.doctor.conftest import FakeCluster, MakeContext, ResultOf


def is_fault(result: CheckResult, fault: Fault) -> bool:
    """Tell whether the result is this fault with its values filled in."""
    start = fault.message.partition("{")[0]
    is_filled = "{" not in result.message + result.remedy
    return result.status is fault.status and result.message.startswith(start) and is_filled


FAULTS = {name: value for module in (cluster, machine, runs, settings, vm) for name, value in vars(module).items()}


@pytest.mark.parametrize("case", load_cases(__file__, "faults.yaml"))
def test_each_fault(case: Case, result_of: ResultOf, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine, "DEVICE_FILE", Path("/nowhere"))
    (project / "token").touch(mode=0o600)
    (project / "token").write_text("secret")
    options: dict[str, Any] = {"on_vm": case["on_vm"]} if "on_vm" in case else {}
    values = case.get("settings", {})
    if "cluster" in case:
        options["cluster"] = FakeCluster(**{key: value for key, value in case["cluster"].items() if key != "denied"})
        options["cluster"].denied = [tuple(rule) for rule in case["cluster"].get("denied", ())]
        values = {"fleet": {"kind": "pods"}, "bench": {"profile": "gpu"}, **values}
    text = json.dumps(values).replace("DIGEST", "ab" * 32)
    result = result_of(case["check"], text, *case.get("only", ()), **options)
    if "skipped" in case:
        assert (result.status, case["skipped"] in result.message) == (CheckStatus.SKIP, True)
        return
    if case["fault"] is None:
        assert result.status is CheckStatus.OK
        return
    fault = FAULTS[case["fault"]]
    assert is_fault(result, fault)
    assert result.is_transient is fault.is_transient
    assert case.get("remedy") in (None, result.remedy)


# This machine


@pytest.mark.parametrize(("code", "output", "status"), [
    (0, "No broken requirements found.\n", CheckStatus.OK),
    (1, "a 1.0 requires b, which is not installed.\nc 1 has requirement d<2, but you have d 2.\n", CheckStatus.FAIL),
    (1, "", CheckStatus.SKIP),
])  # fmt: skip
def test_the_first_of_several_conflicts_of_packages_is_named(
    code: int, output: str, status: CheckStatus, result_of: ResultOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(exit_code=code, stdout=output.encode())
    monkeypatch.setattr(machine, "run_program", lambda *_, **__: done)
    result = result_of("machine packages")
    assert result.status is status
    assert status is not CheckStatus.FAIL or result.message.endswith("b, which is not installed (and 1 more)")


@pytest.mark.parametrize(
    ("free", "fault"), [(10**8, machine.DISK_FULL), (2 * 10**9, machine.DISK_SMALL), (10**11, None)]
)
def test_a_disk_without_room_for_results(
    free: int, fault: Fault | None, result_of: ResultOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    result = result_of("machine disk")
    assert result.status is (CheckStatus.OK if fault is None else fault.status)
    assert fault is None or result.remedy == fault.remedy


def test_a_results_folder_that_is_a_file_or_read_only(result_of: ResultOf, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "results", Path("/proc/results")):
        assert is_fault(
            result_of("machine disk", json.dumps({"results": {"folder": str(folder)}})), machine.NOT_WRITABLE
        )


@pytest.mark.parametrize(
    ("remote_time", "text"), [(1000.0, "200 s ahead of"), (1400.0, "200 s behind"), (1250.0, "agree")]
)
def test_a_wrong_clock(remote_time: float, text: str) -> None:
    result = machine.compare_clocks(1200.0, remote_time, "the cluster")
    assert text in result.message
    assert result.status is (CheckStatus.OK if text == "agree" else CheckStatus.FAIL)


# The build VM and the registry. tests/system/image/test_inv_doctor.py has the real ones.


def test_a_full_disk_of_the_vm_is_named(result_of: ResultOf) -> None:
    fields: dict[str, Any] = {"exists": True, "is_folder": True, "kind": "ext4", "writable": True}
    share, home = (
        FolderInfo(path=path, device=device, free_bytes=free_bytes, **fields)
        for path, device, free_bytes in (("/mnt/fss", 1, 10**12), ("/home/me", 2, 4096))
    )
    result = result_of("vm share", on_vm=(share, home))
    assert is_fault(result, vm.FULL)
    assert result.message.startswith("/home/me: 0.0 GB free")
    assert result_of("vm share", on_vm=(share, share)).status is CheckStatus.OK


# The cluster


def test_a_faults_remedy_is_that_of_the_provider() -> None:
    oci, generic = (cluster.NO_CSI.result(provider, driver="x").remedy for provider in (PROVIDERS["oci"], GENERIC))
    assert oci == PROVIDERS["oci"].texts["volume-driver"] != generic


def test_provider_generic_has_no_checks_of_a_cloud() -> None:
    own = {check.subject for check in all_checks((PROVIDERS["oci"],))} - {
        check.subject for check in all_checks((PROVIDERS["generic"],))
    }
    assert own == {"tenancy"}


def test_a_kubeconfig_that_is_missing_is_named_by_one_check(result_of: ResultOf) -> None:
    missing = ("cluster: {kubeconfig: nowhere}", "cluster")
    assert "nowhere" in result_of("cluster reachable", *missing).message
    assert result_of("cluster rights", *missing).message == "see cluster reachable"


# Nodes and pods


def test_the_findings_of_the_nodes_are_results(make_context: MakeContext) -> None:
    spec = {"unschedulable": True, "taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
    fake = FakeCluster(objects={"nodes": [{**NODE, "spec": spec}]})
    context = make_context("fleet: {kind: pods, size: 1}\ncluster: {memory: 16Gi}", cluster=fake)
    (enough,), health = (run_check(check, context) for check in cluster.NODE_CHECKS)
    assert "0 of 1 nodes" in enough.message
    assert {(result.status, result.remedy) for result in health} >= {
        (CheckStatus.FAIL, "kubectl uncordon NODE"),
        (CheckStatus.FAIL, "kubectl taint node NODE team:NoSchedule-"),
    }


# Runs, GPU, tenancy, VM

RUNS: dict[str, tuple[dict[str, int] | None, list[Fault]]] = {
    "complete": ({TrialStatus.SUCCEEDED.value: 4}, []),
    "complete, with failures": (
        {TrialStatus.SUCCEEDED.value: 1, TrialStatus.OUT_OF_MEMORY.value: 1, TrialStatus.LOST.value: 2},
        [runs.OUT_OF_MEMORY, runs.UNSUCCESSFUL],
    ),
    "abandoned": ({TrialStatus.SUCCEEDED.value: 2}, [runs.UNSUCCESSFUL]),
    "running": ({TrialStatus.SUCCEEDED.value: 2}, []),
    "damaged: x": (None, [runs.DAMAGED]),
}


@pytest.mark.parametrize("state", RUNS)
def test_how_the_newest_run_ended(state: str) -> None:
    ends, faults = RUNS[state]
    results = runs.run_results(RunInfo(run_id="r1", state=state, planned=4, ends=ends))
    listed = [results] if isinstance(results, CheckResult) else results
    remedies = [result.remedy for result in listed if result.status is not CheckStatus.OK]
    assert remedies == [fault.remedy.format(run="r1") for fault in faults]


def test_unconfigured_subjects_are_skipped(result_of: ResultOf) -> None:
    assert {result_of(check.title).status for check in (*vm.CHECKS, *vm.REGISTRY_CHECKS, *oci.CHECKS)} == {
        CheckStatus.SKIP
    }


def test_credentials_of_the_tenancy_that_cannot_be_used(result_of: ResultOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the result of a rejected login; the tests of tasks/oci have `access` itself."""

    def reject(_: object) -> None:
        raise UsageError("~/.oci/config: no profile DEFAULT; there are OTHER", remedy="set tenancy.profile")

    monkeypatch.setitem(sys.modules, oci.CLIENTS_MODULE, SimpleNamespace(connect=reject))
    result = result_of("tenancy login", "{}", "tenancy")
    assert (result.status, result.remedy) == (CheckStatus.FAIL, "set tenancy.profile")
    assert result_of("tenancy login").status is CheckStatus.SKIP
