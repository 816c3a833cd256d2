"""`inv doctor` on a laptop with access to a build VM, a registry and the tests' cluster at the same time.

Not covered: a GPU, a tenancy, the permissions of a private registry.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubernetes import Cluster
from tests.support.machines.build_vm import PASSWORD, REGISTRY_USER, BuildVm
from tests.support.machines.network import USER
from tests.support.machines.second_cluster import cluster_seen_by_laptop

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2) as started:
        yield started


@pytest.fixture
def settings(build_vm: BuildVm, cluster: Cluster) -> Iterator[dict[str, str]]:
    """The settings of an operator whose laptop has access to all of them."""
    with cluster_seen_by_laptop(build_vm, cluster) as environment:
        yield environment
    cluster.faults.clear()


def run_doctor(build_vm: BuildVm, settings: dict[str, str], code: int) -> dict[str, list[dict[str, Any]]]:
    """Run `inv doctor` and return the results by check."""
    done = build_vm.inv("doctor", "--json", code=code, **settings)
    results: dict[str, list[dict[str, Any]]] = {}
    for result in json.loads(done.stdout)["answers"]:
        results.setdefault(f"{result['subject']} {result['check']}", []).append(result)
    return results


def test_a_complete_set_up_has_no_faults(build_vm: BuildVm, settings: dict[str, str]) -> None:
    results = run_doctor(build_vm, settings, code=0)
    states = {title: {answer["state"] for answer in answers} for title, answers in results.items()}
    passed = ("vm connection", "vm engine", "vm slot", "vm share", "vm room", "registry name", "cluster reachable")
    passed += ("cluster rights", "nodes enough", "nodes GPUs", "machine clock", "settings files")
    assert {title: states[title] for title in passed} == {title: {"fine"} for title in passed}
    assert states["cluster kubectl"] <= {"fine", "careful"}, "depends on this machine's kubectl"
    assert states["registry login"] == {"careful"}, "nothing was pushed yet"
    assert {title for title, title_states in states.items() if title_states == {"unasked"}} == {
        *("gpu usable", "runs newest", "models whole", "tenancy login", "cluster DNS", "pods up")
    }


def test_each_of_several_faults_is_one_line_with_its_remedy(
    build_vm: BuildVm, settings: dict[str, str], cluster: Cluster
) -> None:
    build_vm.write_password_file("not it")
    build_vm.set_docker_group()
    cluster.faults.forbid(resource="pods/exec")
    cluster.faults.set_gpus("node-1", 0)
    try:
        results = run_doctor(build_vm, settings, code=1)
    finally:
        build_vm.write_password_file(PASSWORD)
        build_vm.set_docker_group(USER)
        cluster.faults.set_gpus("node-1", 1)
    wrong = {title: answer for title, answers in results.items() for answer in answers if answer["state"] == "wrong"}
    assert wrong.keys() == {"vm engine", "registry login", "cluster rights", "nodes enough", "nodes GPUs"}
    assert "usermod -aG docker" in wrong["vm engine"]["remedy"]
    assert REGISTRY_USER in wrong["registry login"]["found"]
    assert "auth token" in wrong["registry login"]["remedy"]
    assert "may not get pods/exec, create pods/exec" in wrong["cluster rights"]["found"]
    assert "device plugin" in wrong["nodes GPUs"]["found"]
    assert results["vm room"][0]["found"] == "see vm engine"


def test_an_unreachable_cluster_is_transient(build_vm: BuildVm, settings: dict[str, str], cluster: Cluster) -> None:
    cluster.faults.stop_server()
    try:
        done = build_vm.inv("doctor", "--only", "cluster,nodes,pods", code=3, **settings)
    finally:
        cluster.faults.start_server()
    assert "✗ cluster reachable" in done.stdout
    assert done.stdout.count("see cluster reachable") == 3, done.stdout
    assert done.stderr.startswith("doctor: cluster reachable: ")
    assert done.stderr.count("\n") == 1
