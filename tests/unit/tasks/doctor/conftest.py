"""Fixtures: a check context for a test's settings, with a fake cluster and a fake VM."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from invoke import Context

from remote.cluster.diagnosis.readiness import PodFleet
from remote.cluster.kubeconfig import Target
from remote.cluster.namespace_client import Kind
from remote.providers import PROVIDERS, Provider
from tasks.doctor.check import CheckContext, SharedFact, run_check
from tasks.doctor.doctor import all_checks
from tasks.faults import CheckResult
from tasks.settings.layers import load

MakeContext = Callable[..., CheckContext]
ResultOf = Callable[..., CheckResult]
TARGET = Target(context="dev", cluster="c", user="me", namespace="ours", server="https://dev:6443")


@dataclass(kw_only=True)
class FakeCluster:
    """Fake of `remote.cluster.namespace_client.Cluster` with a test's objects; tests/system/image uses the real one."""

    target: Target = TARGET
    provider: Provider = PROVIDERS["oci"]
    denied: Collection[tuple[str, str]] = ()
    live_namespace: Any = field(default_factory=lambda: {"metadata": {"name": "ours"}})
    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    names: Collection[str] = ()
    server_version: tuple[str, float | None] = ("v1.34.1", None)

    def version(self) -> tuple[str, float | None]:
        return self.server_version

    def is_allowed(self, verb: str, kind: Kind, subresource: str = "") -> bool:
        return (verb, f"{kind.plural}/{subresource}" if subresource else kind.plural) not in self.denied

    def namespace(self) -> Any:
        return self.live_namespace

    def list_all(self, kind: Kind, **_: Any) -> list[dict[str, Any]]:
        return self.objects.get(kind.plural, [])

    def pods(self) -> list[dict[str, Any]]:
        return self.objects.get("pods", [])

    def pod_fleet(self) -> PodFleet:
        return PodFleet()

    def nodes(self) -> list[dict[str, Any]]:
        return self.objects.get("nodes", [])

    def pods_everywhere(self) -> list[dict[str, Any]]:
        return []

    def has_object(self, _: Kind, name: str) -> bool:
        return name in self.names


@pytest.fixture
def make_context(context: Callable[..., Context]) -> MakeContext:
    """Return a function that makes a check context with these settings (YAML).

    `cluster` replaces the cluster, and `on_vm` is the result of every call on the VM.
    """

    def make(text: str = "{}", *only: str, cluster: FakeCluster | None = None, on_vm: object = ...) -> CheckContext:
        check_context = CheckContext(load(context(text=text)), frozenset(only))
        if cluster is not None:
            check_context.cluster = SharedFact(lambda: cluster, "cluster reachable")  # type: ignore[arg-type, return-value]
        if on_vm is not ...:
            check_context.machine = SharedFact(lambda: None, "vm connection")  # type: ignore[arg-type, return-value]
            check_context.on_vm = lambda _: on_vm  # type: ignore[assignment, method-assign, return-value]
        return check_context

    return make


@pytest.fixture
def result_of(make_context: MakeContext) -> ResultOf:
    """Return a function that runs the check with this title and returns its only result.

    The other arguments are those of `make_context`.
    """

    def run(title: str, *settings: str, **options: Any) -> CheckResult:
        (check,) = (check for check in all_checks() if check.title == title)
        (result,) = run_check(check, make_context(*settings, **options))
        return result

    return run
