"""Which kinds this server knows, read from the discovery documents it serves."""

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
    """What a request's path points at."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@cache
def document(name: str) -> Any:
    """A JSON document of the data folder."""
    return json.loads((DATA / name).read_text())


@cache
def known() -> dict[tuple[str, str, str], Resource]:
    """(group, version, plural) to resource."""
    found = {}
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
                    found[name, resource.version, resource.plural] = resource
    return found


GROUPS: tuple[tuple[str, str], ...] = tuple(sorted({(group, version) for group, version, _ in known() if group}))


def resource_list(path: str) -> Any:
    """The APIResourceList of one group version, as clients ask for that do not know the aggregated documents."""
    group, version = ("", "v1") if path == "/api/v1" else path.removeprefix("/apis/").split("/")
    found = []
    for part in ("discovery-api.json", "discovery-apis.json"):
        for entry in document(part)["items"]:
            for about in entry["versions"] if entry["metadata"].get("name", "") == group else []:
                if about["version"] == version:
                    found = about["resources"]
    listed = []
    for entry in found:
        one = {"name": entry["resource"], "singularName": entry["singularResource"], "verbs": entry["verbs"]}
        one |= {"namespaced": entry["scope"] == "Namespaced", "kind": entry["responseKind"]["kind"]}
        listed.append(one | ({"shortNames": entry["shortNames"]} if "shortNames" in entry else {}))
        for inner in entry.get("subresources", []):
            name = f"{entry['resource']}/{inner['subresource']}"
            about = {key: value for key, value in inner["responseKind"].items() if value}  # drain looks for the group
            listed.append({**one, "name": name, "singularName": "", **about, "verbs": inner["verbs"]})
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


@cache
def by_key(key: str) -> Resource:
    """`pods` or `jobs.batch`."""
    plural, _, group = key.partition(".")
    return next(r for r in known().values() if r.plural == plural and r.group == group)


def target(path: str) -> Target | None:
    """The target of `/api/v1/...` or `/apis/GROUP/VERSION/...`; None when nothing known is there."""
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
