"""`inv doctor` on a laptop with access to a build VM and a registry.

Its checks of a cluster: tests/system/cluster. Not covered: a GPU, a tenancy, the permissions of a private registry.
"""

import json
from typing import Any

import pytest

from tests.support.machines.build_vm import NAMESPACE, PASSWORD, REGISTRY, REGISTRY_USER, BuildVm
from tests.support.machines.network import USER

pytestmark = pytest.mark.timeout(600)


def run_doctor(build_vm: BuildVm, code: int) -> dict[str, dict[str, Any]]:
    """Run `inv doctor` and return the last result of each check."""
    image = f"{REGISTRY}/{NAMESPACE}/qlora-fleet:never-pushed"
    done = build_vm.inv("doctor", "--only", "machine,settings,vm,registry", "--json", code=code, REGISTRY_IMAGE=image)
    return {f"{result['subject']} {result['check']}": result for result in json.loads(done.stdout)["answers"]}


def test_each_of_several_faults_is_one_line_with_its_remedy(build_vm: BuildVm) -> None:
    passed = ("vm connection", "vm engine", "vm share", "vm room", "registry name", "machine clock")
    results = run_doctor(build_vm, code=0)
    assert {title: results[title]["state"] for title in passed} == dict.fromkeys(passed, "fine")
    assert results["registry login"]["state"] == "careful", "nothing was pushed yet"
    build_vm.write_password_file("not it")
    build_vm.set_docker_group()
    try:
        results = run_doctor(build_vm, code=1)
    finally:
        build_vm.write_password_file(PASSWORD)
        build_vm.set_docker_group(USER)
    wrong = {title: result for title, result in results.items() if result["state"] == "wrong"}
    assert wrong.keys() == {"vm engine", "registry login"}
    assert "usermod -aG docker" in wrong["vm engine"]["remedy"]
    assert REGISTRY_USER in wrong["registry login"]["found"]
    assert "auth token" in wrong["registry login"]["remedy"]
    assert results["vm room"]["found"] == "see vm engine"
