"""A pod's volumes as folders, and its environment, from its spec and the objects that it references."""

import os
import re
from pathlib import Path

from remote.cluster.quantities import parse_quantity
from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.api.selectors import field_of
from tests.support.kubernetes.store.store import Store


def downward_value(pod: Json, path: str) -> str:
    """Return the downward API's value of `path`."""
    if match := re.match(r"metadata\.(labels|annotations)\['(.+)'\]$", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    return field_of(pod, path)


def _prepare(pod: Json, volume: Json, state: Path) -> Json:
    """Create a volume; return its `source` folder or `tmpfs` options."""
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    folder = state / "pods" / uid / "volumes" / volume["name"]
    if "emptyDir" in volume:
        limit = volume["emptyDir"].get("sizeLimit")
        if volume["emptyDir"].get("medium") == "Memory":
            return {"tmpfs": f"mode=1777,size={int(parse_quantity(limit) if limit else 2**28)}"}
        folder.mkdir(parents=True, exist_ok=True)
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        if group is not None:
            os.chown(folder, -1, group)
        folder.chmod(0o2777 if group is not None else 0o777)
        return {"source": str(folder)}
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        folder = state / "claims" / namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return {"source": str(folder)}
    raise ValueError(f"this server does not support volumes of kind {next(k for k in volume if k != 'name')}")


def mounts(pod: Json, container: Json, state: Path) -> list[Json]:
    """Return the sandbox's mounts for one container."""
    by_name = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    return [
        {"path": mount["mountPath"], **_prepare(pod, by_name[mount["name"]], state)}
        for mount in container.get("volumeMounts", [])
    ]


def expand(text: str, known: dict[str, str]) -> str:
    """Expand `$(NAME)` and `$$` like the kubelet: an unknown name stays unchanged, `$$` becomes `$`."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda match: "$" if match[1] == "$" else known.get(match[2], match[0]), text)


def environment(store: Store, pod: Json, container: Json, base: dict[str, str]) -> dict[str, str]:
    """Return the container's variables on top of its image's."""
    made = dict(base)
    for source in container.get("envFrom", []):
        made |= store.get("configmaps", pod["metadata"]["namespace"], source["configMapRef"]["name"])["data"]
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            made[entry["name"]] = downward_value(pod, entry["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            made[entry["name"]] = expand(entry.get("value", ""), made)
    return made
