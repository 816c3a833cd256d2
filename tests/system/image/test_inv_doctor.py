"""`inv doctor` typed on a laptop that reaches a build VM, a registry and the tests' own cluster, all at once.

Not covered: a GPU (there is none), a tenancy, a private registry's own rights.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubernetes import Cluster
from tests.support.machines.build_vm import PASSWORD, BuildVm
from tests.support.machines.network import USER
from tests.support.machines.second_cluster import seen_beside

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2) as started:
        yield started


@pytest.fixture
def settings(build_vm: BuildVm, cluster: Cluster) -> Iterator[dict[str, str]]:
    """Of an operator whose laptop sees all of them."""
    with seen_beside(build_vm, cluster) as found:
        yield found
    cluster.faults.clear()


def doctor(build_vm: BuildVm, settings: dict[str, str], code: int) -> dict[str, list[dict[str, Any]]]:
    """The answers by check."""
    done = build_vm.inv("doctor", "--json", code=code, **settings)
    said: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout)["answers"]:
        said.setdefault(f"{one['subject']} {one['check']}", []).append(one)
    return said


def test_where_everything_answers_nothing_is_to_mend(build_vm: BuildVm, settings: dict[str, str]) -> None:
    said = doctor(build_vm, settings, code=0)
    states = {title: {answer["state"] for answer in answers} for title, answers in said.items()}
    asked = ("vm connection", "vm engine", "vm slot", "vm share", "vm room", "registry name", "cluster reachable")
    asked += ("cluster rights", "nodes enough", "nodes GPUs", "machine clock", "settings files")
    assert {title: states[title] for title in asked} == {title: {"fine"} for title in asked}
    assert states["cluster kubectl"] <= {"fine", "careful"}, "whichever kubectl this machine has"
    assert states["registry login"] == {"careful"}, "nothing was pushed there yet"
    assert {title for title, found in states.items() if found == {"unasked"}} == {
        *("gpu usable", "runs newest", "models whole", "tenancy login", "cluster DNS", "pods up"),
    }


def test_faults_everywhere_are_each_one_line_with_what_mends_it(
    build_vm: BuildVm, settings: dict[str, str], cluster: Cluster
) -> None:
    build_vm.write_password_file("not it")
    build_vm.set_docker_group()
    cluster.faults.forbid(resource="pods/exec")
    cluster.faults.set_gpus("node-1", 0)
    try:
        said = doctor(build_vm, settings, code=1)
    finally:
        build_vm.write_password_file(PASSWORD)
        build_vm.set_docker_group(USER)
        cluster.faults.set_gpus("node-1", 1)
    wrong = {title: answer for title, answers in said.items() for answer in answers if answer["state"] == "wrong"}
    assert wrong.keys() == {"vm engine", "registry login", "cluster rights", "nodes enough", "nodes GPUs"}
    assert "usermod -aG docker" in wrong["vm engine"]["remedy"]
    assert "refuses user" in wrong["registry login"]["found"]
    assert "auth token" in wrong["registry login"]["remedy"]
    assert "may not get pods/exec, create pods/exec" in wrong["cluster rights"]["found"]
    assert "device plugin" in wrong["nodes GPUs"]["found"]
    assert said["vm room"][0]["found"] == "see vm engine"


def test_a_cluster_that_is_gone_may_come_back(build_vm: BuildVm, settings: dict[str, str], cluster: Cluster) -> None:
    cluster.faults.server_gone()
    try:
        done = build_vm.inv("doctor", "--only", "cluster,nodes,pods", code=3, **settings)
    finally:
        cluster.faults.server_back()
    assert "✗ cluster reachable" in done.stdout
    assert done.stdout.count("see cluster reachable") == 3, done.stdout
    assert done.stderr == "doctor: cluster reachable: that may pass; `inv doctor` asks again\n"
