"""Each command of the tenancy that changes something, with --dry-run --json: a plan, and only requests that read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

import yaml
from invoke import Context

from tasks import ns
from tests.support.dry_runs import plan_of
from tests.support.machines.fake_tenancy import FakeTenancy
from tests.unit.tasks.oci.test_tasks import SERVICE_KUBECONFIG

CHANGING = {
    command.full_name: command for command in ns.collections["tenancy"].tasks.values() if command.effect.changes
}
CASES: dict[str, dict[str, Any]] = {
    "tenancy.show": {"write": True},
    "tenancy.repository": {"name": "team/new"},
    "tenancy.kubeconfig": {},
}


def test_every_command_that_changes_something_has_a_case() -> None:
    assert CASES.keys() == CHANGING.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_prints_its_plan_as_json_and_changes_nothing(
    name: str,
    tenancy: FakeTenancy,
    project: Path,
    context: Callable[..., Context],
    capsys: pytest.CaptureFixture[str],
) -> None:
    tenancy.resources.kubeconfig = yaml.safe_dump(SERVICE_KUBECONFIG)
    invoked = context(text="{}")
    plan_of(CHANGING[name], invoked, project.parent, capsys, **CASES[name])
    changes = tenancy.count_requests("^(PUT|POST|DELETE)")
    reads = tenancy.count_requests("^POST .*/kubeconfig/content")
    assert (changes - reads, tenancy.count_requests("^GET") > 0) == (0, True)
