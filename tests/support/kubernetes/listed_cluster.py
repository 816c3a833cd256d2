"""A cluster's client for unit tests: lists that tests set, and the deletions that were made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remote.cluster.kubeconfig import Target
from remote.providers import PROVIDERS, Provider

Json = dict[str, Any]
TARGET = Target(context="one", cluster="c", user="u", namespace="n", server="https://s")


@dataclass(kw_only=True)
class FakeCluster:
    """Lists as JSON of the API."""

    live_nodes: list[Json] = field(default_factory=list)
    fleet_pods: list[Json] = field(default_factory=list)
    objects: dict[str, list[Json]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    target: Target = TARGET
    provider: Provider = PROVIDERS["oci"]

    def nodes(self) -> list[Json]:
        return self.live_nodes

    def pods(self) -> list[Json]:
        return self.fleet_pods

    def pods_everywhere(self) -> list[Json]:
        return self.fleet_pods

    def list_fleet_objects(self, kind: str) -> list[Json]:
        return [item for item in self.objects.get(kind, []) if item["metadata"]["name"] not in self.deleted]

    def delete(self, objects: Sequence[Json], *, wait_sec: float) -> None:  # noqa: ARG002
        self.deleted += [item["metadata"]["name"] for item in objects]
