"""A pod's volumes as folders, and its environment, from its spec and the objects that it references."""

import base64
import os
import re
import shutil
from pathlib import Path

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.api.selectors import field_of
from tests.support.kubernetes.controllers.quantities import parse_quantity
from tests.support.kubernetes.store.store import Store


class CannotMount(Exception):
    """Raised if a volume is unavailable, with the FailedMount event's message."""


class CannotConfigure(Exception):
    """Raised if the environment is invalid, with CreateContainerConfigError's message."""


def downward_value(pod: Json, path: str) -> str:
    """Return the downward API's value of `path`."""
    if match := re.match(r"metadata\.(labels|annotations)\['(.+)'\]$", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    return field_of(pod, path)


def _data(store: Store, key: str, namespace: str, name: str) -> dict[str, bytes] | None:
    obj = store.find(key, namespace, name)
    if obj is None:
        return None
    if key == "secrets":
        return {name: base64.b64decode(value) for name, value in obj.get("data", {}).items()}
    plain = {name: value.encode() for name, value in obj.get("data", {}).items()}
    return plain | {name: base64.b64decode(value) for name, value in obj.get("binaryData", {}).items()}


def _files(store: Store, pod: Json, source: Json) -> tuple[dict[str, bytes], int]:
    """Return the files of a configMap, secret, downwardAPI or projected source, and their mode."""
    namespace = pod["metadata"]["namespace"]
    kind, spec = next((kind, spec) for kind, spec in source.items() if kind != "name")
    mode = spec.get("defaultMode", 0o644)
    if kind == "projected":
        made: dict[str, bytes] = {}
        for inner in spec["sources"]:
            made |= _files(store, pod, inner)[0]
        return made, mode
    if kind == "downwardAPI":
        return {
            item["path"]: downward_value(pod, item["fieldRef"]["fieldPath"]).encode() for item in spec["items"]
        }, mode
    if kind == "serviceAccountToken":
        return {spec["path"]: b"no-token"}, mode
    key = "secrets" if kind == "secret" else "configmaps"
    name = spec.get("secretName") or spec.get("name", "")
    data = _data(store, key, namespace, name)
    if data is None:
        if spec.get("optional") or name == "kube-root-ca.crt":
            return {}, mode
        raise CannotMount(f'{key[:-1]} "{name}" not found')
    if "items" in spec:
        for item in spec["items"]:
            if item["key"] not in data:
                raise CannotMount(f"references non-existent {key[:-1]} key: {item['key']}")
        return {item["path"]: data[item["key"]] for item in spec["items"]}, mode
    return data, mode


def _fill(folder: Path, files: dict[str, bytes], mode: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def _prepare(store: Store, pod: Json, volume: Json, state: Path, disk_bytes: int | None) -> Json:
    """Create a volume; return its `source` folder or `tmpfs` options."""
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    folder = state / "pods" / uid / "volumes" / volume["name"]
    if "emptyDir" in volume:
        limit = volume["emptyDir"].get("sizeLimit")
        size = parse_quantity(limit) if limit and volume["emptyDir"].get("medium") == "Memory" else disk_bytes
        if volume["emptyDir"].get("medium") == "Memory" or disk_bytes:
            return {"tmpfs": f"mode=1777,size={int(size or 2**28)}"}
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
    if any(kind in volume for kind in ("configMap", "secret", "projected", "downwardAPI")):
        files, mode = _files(store, pod, volume)
        _fill(folder, files, mode)
        return {"source": str(folder), "read_only": True}
    raise CannotMount(f"this server does not support volumes of kind {next(k for k in volume if k != 'name')}")


def mounts(store: Store, pod: Json, container: Json, state: Path, disk_bytes: int | None) -> list[Json]:
    """Return the sandbox's mounts for one container. Raises CannotMount."""
    by_name = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    made = []
    for mount in container.get("volumeMounts", []):
        prepared = _prepare(store, pod, by_name[mount["name"]], state, disk_bytes)
        if "tmpfs" in prepared:
            made.append({"path": mount["mountPath"], **prepared})
            continue
        if sub := mount.get("subPath"):
            prepared["source"] = os.path.join(prepared["source"], sub)
            if "read_only" not in prepared:
                os.makedirs(prepared["source"], exist_ok=True)
                os.chmod(prepared["source"], 0o777)  # noqa: S103 (as the kubelet)
        read_only = prepared.get("read_only", False) or mount.get("readOnly", False)
        made.append({"path": mount["mountPath"], "source": prepared["source"], "read_only": read_only})
    return made


def _resolve_value(store: Store, pod: Json, source: Json) -> str:
    if "fieldRef" in source:
        return downward_value(pod, source["fieldRef"]["fieldPath"])
    for ref, key in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if ref in source:
            name, wanted = source[ref]["name"], source[ref]["key"]
            data = _data(store, key, pod["metadata"]["namespace"], name)
            if data is None:
                raise CannotConfigure(f'{key[:-1]} "{name}" not found')
            if wanted not in data:
                kind = "Secret" if key == "secrets" else "ConfigMap"
                raise CannotConfigure(f"couldn't find key {wanted} in {kind} {pod['metadata']['namespace']}/{name}")
            return data[wanted].decode()
    raise CannotConfigure(f"this server does not support {', '.join(source)}")


def expand(text: str, known: dict[str, str]) -> str:
    """Expand `$(NAME)` like the kubelet; unknown names stay unchanged."""
    return re.sub(r"\$\(([\w.-]+)\)", lambda match: known.get(match[1], match[0]), text)


def environment(store: Store, pod: Json, container: Json, base: dict[str, str]) -> dict[str, str]:
    """Return the container's variables on top of its image's. Raises CannotConfigure."""
    made = dict(base)
    for source in container.get("envFrom", []):
        ref, key = ("secretRef", "secrets") if "secretRef" in source else ("configMapRef", "configmaps")
        name = source[ref]["name"]
        data = _data(store, key, pod["metadata"]["namespace"], name)
        if data is None and not source[ref].get("optional"):
            raise CannotConfigure(f'{key[:-1]} "{name}" not found')
        made |= {source.get("prefix", "") + name: value.decode() for name, value in (data or {}).items()}
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            made[entry["name"]] = _resolve_value(store, pod, entry["valueFrom"])
        else:
            made[entry["name"]] = expand(entry.get("value", ""), made)
    return made
