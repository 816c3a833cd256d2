"""Facts about a project of the test's own, and a cluster and a VM that answer what the test says."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from invoke import Context

from remote.cluster.kubeconfig import Target
from remote.cluster.resource_kinds import Kind
from tasks.doctor.context import CheckContext, SharedFact
from tasks.doctor.registry import CHECKS
from tasks.doctor.result import CheckResult
from tasks.doctor.runner import answers
from tasks.settings.load import load

MakeFacts = Callable[..., CheckContext]
Ask = Callable[..., CheckResult]
TARGET = Target(context="dev", cluster="c", user="me", namespace="ours", server="https://dev:6443")


@dataclass(kw_only=True)
class GivenCluster:
    """Answers as `remote.cluster.client.Cluster` does, from what a test sets. The real one: tests/system/image."""

    target: Target = TARGET
    denied: Collection[tuple[str, str]] = ()
    there: Any = field(default_factory=lambda: {"metadata": {"name": "ours"}})
    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    names: Collection[str] = ()
    said: tuple[str, float | None] = ("v1.34.1", None)

    def version(self) -> tuple[str, float | None]:
        return self.said

    def allowed(self, verb: str, kind: Kind, subresource: str = "") -> bool:
        return (verb, f"{kind.plural}/{subresource}" if subresource else kind.plural) not in self.denied

    def namespace(self) -> Any:
        return self.there

    def every(self, kind: Kind, **_: Any) -> list[dict[str, Any]]:
        return self.objects.get(kind.plural, [])

    def pods(self) -> list[dict[str, Any]]:
        return self.objects.get("pods", [])

    def list_of(self, kind: str) -> list[dict[str, Any]]:
        return self.objects.get(kind, [])

    def nodes(self) -> list[dict[str, Any]]:
        return self.objects.get("nodes", [])

    def pods_everywhere(self) -> list[dict[str, Any]]:
        return []

    def has(self, _: Kind, name: str) -> bool:
        return name in self.names

    def has_secret(self, name: str) -> bool:
        return name in self.names

    knows_group = has_secret


@pytest.fixture
def facts(context: Callable[..., Context]) -> MakeFacts:
    """Facts with these settings (YAML); `cluster` answers where it is given, and a VM answers what is given `on_vm`."""

    def make(text: str = "{}", *only: str, cluster: GivenCluster | None = None, on_vm: object = ...) -> CheckContext:
        made = context(text=text)
        found = CheckContext(load(made), made.config, frozenset(only))
        if cluster is not None:
            found.cluster = SharedFact(lambda: cluster, "cluster reachable")  # type: ignore[arg-type, return-value]
        if on_vm is not ...:
            found.machine = SharedFact(lambda: None, "vm connection")  # type: ignore[arg-type, return-value]
            found.on_vm = lambda _: on_vm  # type: ignore[assignment, method-assign, return-value]
        return found

    return make


@pytest.fixture
def ask(facts: MakeFacts) -> Ask:
    """The one answer of the check of this title; the rest is as for `facts`."""

    def of(title: str, *settings: str, **given: Any) -> CheckResult:
        (check,) = (check for check in CHECKS if check.title == title)
        (only,) = answers(check, facts(*settings, **given))
        return only

    return of
