"""Kinds that this server supports, read from the discovery documents that it serves."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One kind under its group and version. `key` is kubectl's long name: `pods`, `jobs.batch`."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def key(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, kw_only=True)
class Target:
    """The resource, namespace, name and subresource in a request's path."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@cache
def document(name: str) -> Any:
    """Load a JSON document of the data folder."""
    return json.loads((DATA / name).read_text())


@cache
def known() -> dict[tuple[str, str, str], Resource]:
    """Map (group, version, plural) to the resource."""
    resources = {}
    for part in ("discovery-api.json", "discovery-apis.json"):
        for group in document(part)["items"]:
            name = group["metadata"].get("name", "")
            for version in group["versions"]:
                for entry in version["resources"]:
                    resource = Resource(
                        group=name,
                        version=version["version"],
                        kind=entry["responseKind"]["kind"],
                        plural=entry["resource"],
                        namespaced=entry["scope"] == "Namespaced",
                    )
                    resources[name, resource.version, resource.plural] = resource
    return resources


@cache
def by_key(key: str) -> Resource:
    """Return the resource of a key such as `pods` or `jobs.batch`."""
    plural, _, group = key.partition(".")
    return next(r for r in known().values() if r.plural == plural and r.group == group)


def target(path: str) -> Target | None:
    """Parse `/api/v1/...` or `/apis/GROUP/VERSION/...`; None for unknown paths."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, version, rest = "", *parts[1:2], parts[2:]
    elif parts[0] == "apis" and len(parts) > 2:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = known().get((group, version, rest[0])) if rest else None
    if resource is None or len(rest) > 3:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)
