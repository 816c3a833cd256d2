"""`inv tenancy.kubeconfig`: a cluster into a kubeconfig, whose token comes from a program of ours.

Certificate and address come from the service. Its user, which would run the OCI CLI, is replaced by `python -m
tasks.oci token`; no secret is in the file. What else is in the file stays.
"""

import copy
import os
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from invoke.context import Context
from oci import regions
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import CreateClusterKubeconfigContentDetails

from bench.records.atomic_files import read_regular
from remote.hosts.local import expanded
from tasks.errors import UsageError, file_errors
from tasks.oci.access.clients import Access, access, compartment_of
from tasks.oci.access.errors import ServiceCall
from tasks.oci.access.profile import check_ocid, ocid_kind
from tasks.oci.discovery import ClusterInfo, clusters
from tasks.oci.private_files import keep_old, write_private
from tasks.settings.load import Settings, load
from tasks.settings.sources import shown

_MOST_BYTES = 16 << 20
_VERSION = "2.0.0"  # of the service's kubeconfig: the one whose tokens a program makes
_LISTS = ("clusters", "users", "contexts")
Kubeconfig = Mapping[str, Any]


def write_kubeconfig(context: Context, cluster: str | None, endpoint: str | None, file: str | None) -> None:
    if endpoint not in (None, "public", "private"):
        raise UsageError(f"tenancy.kubeconfig: --endpoint: expected public or private, found {endpoint!r}")
    settings = load(context)
    path = _file(settings, file)
    old = read(path)  # before anything is asked: what cannot be read is not asked for in vain
    entry = access(settings)
    compartment, _ = compartment_of(settings, entry)
    found = chosen(clusters(entry, compartment), cluster)
    end = endpoint or ("public" if found.public else "private")
    if not (found.public if end == "public" else found.private):
        raise UsageError(
            f"cluster {found.name} has no {end} endpoint; type: inv tenancy.kubeconfig --endpoint "
            + ("private" if end == "public" else "public")
        )
    made = with_our_user(_of_service(entry, found, end), found, token_command(settings, entry, found.id))
    merged = merge(old, made, shown(path))
    if merged == old:
        print(f"{shown(path)} has context {found.name} already; nothing was changed")
    else:
        _write(path, merged)
    print(f"`inv nodes` shows its nodes after: cluster: {{ context: {found.name} }} in ~/.invoke.yaml")
    if end == "private":
        print("its endpoint is private: it answers from the cluster's network (a VPN, or a bastion's tunnel)")


def _write(path: Path, merged: Kubeconfig) -> None:
    with file_errors(f"{shown(path)}: cannot be written", "; name another with --file"):
        if path.exists():
            print(f"kept the old one as {shown(keep_old(path))}")
        write_private(path, yaml.safe_dump(dict(merged), sort_keys=False, allow_unicode=True).encode())
    print(f"wrote {shown(path)}, readable by you alone")


def _file(settings: Settings, file: str | None) -> Path:
    if file is not None:
        return settings.typed(file)
    if settings.cluster.kubeconfig:
        return settings.file(settings.cluster.kubeconfig)
    first = next(filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)), "~/.kube/config")
    return expanded(first)


def chosen(found: Sequence[ClusterInfo], name: str | None) -> ClusterInfo:
    """The one that is meant. Raises UsageError, which names those there are."""
    if name is not None and ocid_kind(name):
        check_ocid("tenancy.kubeconfig: --cluster", name, "cluster")
    named = [one for one in found if name is None or name in (one.name, one.id)]
    if len(named) == 1:
        return named[0]
    known = ", ".join(f"{one.name} ({one.id})" for one in named or found) or "none; tenancy.compartment names another"
    if not named:
        raise UsageError(f"no cluster{f' {name}' if name else ''} in this compartment; there are {known}")
    what = "several clusters" if name is None else f"{len(named)} clusters called {name}"
    raise UsageError(f"{what}: {known}; type: inv tenancy.kubeconfig --cluster OCID")


def _of_service(entry: Access, found: ClusterInfo, end: str) -> Kubeconfig:
    details = CreateClusterKubeconfigContentDetails(token_version=_VERSION, endpoint=f"{end.upper()}_ENDPOINT")
    client = entry.client(ContainerEngineClient)
    asked = ServiceCall(doing=f"asking for the kubeconfig of {found.name}", right="use clusters")
    text = entry.content(asked, client.create_kubeconfig, found.id, create_cluster_kubeconfig_content_details=details)
    return _parsed(text, f"the kubeconfig that the service gave for {found.name}")


def token_command(settings: Settings, entry: Access, cluster_id: str) -> tuple[str, ...]:
    """The program that gives a token, without any secret. -P: a tasks.py where it is run must not be taken for ours."""
    section = settings.tenancy
    domain = regions.REALMS[regions.get_realm_from_region(entry.region)]
    host = f"containerengine.{entry.region}.{domain}"
    here = (sys.executable, "-P", "-m", "tasks.oci")
    which = ("--cluster", cluster_id, "--host", host, "--region", entry.region)
    if section.auth == "instance_principal":
        return (*here, "instance-token", *which)
    file = settings.file(section.config_file)
    return (*here, "token", *which, "--config-file", str(file), "--profile", section.profile)


def with_our_user(service: Kubeconfig, found: ClusterInfo, command: Sequence[str]) -> dict[str, Any]:
    """A kubeconfig of this cluster alone, all of it under the cluster's name. Raises UsageError."""
    try:
        cluster = dict(service["clusters"][0]["cluster"])
        server = str(cluster["server"])
    except (LookupError, TypeError, ValueError):
        raise UsageError(f"the kubeconfig that the service gave for {found.name} names no cluster") from None
    if not server.startswith("https://") or cluster.get("insecure-skip-tls-verify"):
        raise UsageError(f"the kubeconfig that the service gave for {found.name} is not safe: {server[:80]}")
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": command[0],
        "args": list(command[1:]),
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    name = found.name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": program}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def read(path: Path) -> dict[str, Any]:
    """The kubeconfig at `path`, empty where there is none. Raises UsageError: it is never written over then."""
    try:
        return _parsed(read_regular(path, most_bytes=_MOST_BYTES), shown(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{shown(path)}: cannot be read: {error.strerror}; name another with --file") from None


class _NoTimes(yaml.SafeLoader):
    """A time of day stays the text that it is."""


_NoTimes.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    unusable = "mend it, or name another with --file; nothing was written"
    try:
        document = yaml.load(content.decode("utf-8"), _NoTimes)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UsageError(f"{name}{f':{mark.line + 1}' if mark else ''}: cannot be read as YAML; {unusable}") from None
    if document is None:
        return {}
    is_one = isinstance(document, dict) and document.get("kind", "Config") == "Config"
    if not is_one or not all(_is_named_list(document.get(key), key.removesuffix("s")) for key in _LISTS):
        raise UsageError(f"{name}: is no kubeconfig; {unusable}")
    found: dict[str, Any] = document
    return found


def _is_named_list(value: object, kind: str) -> bool:
    """Whether each entry has a name, and beside it what it names, where that is there."""
    if value is None:
        return True
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("name"), Hashable)
        and "name" in one
        and isinstance(one.get(kind) or {}, dict)
        for one in value
    )


def merge(old: Kubeconfig, new: Kubeconfig, name: str) -> dict[str, Any]:
    """`old` with what is in `new`; a current context stays. Raises UsageError where a name is another cluster's."""
    _refuse_others_context(old, new["clusters"][0], name)
    merged = copy.deepcopy(dict(old)) or {"apiVersion": "v1", "kind": "Config"}
    for key in _LISTS:
        there = {one["name"]: one for one in merged.get(key) or []}
        for one in new[key]:
            before = there.get(one["name"])
            if (
                key == "clusters"
                and before is not None
                and _server(before) != _server(one)
                and not _is_ours(old, one["name"])
            ):
                raise UsageError(
                    f"{name}: {one['name']} is another cluster there, {_server(before)}; name another file with --file"
                )
            there[one["name"]] = one
        merged[key] = list(there.values())
    merged["current-context"] = old.get("current-context") or new["current-context"]
    return merged


def _refuse_others_context(old: Kubeconfig, ours: Mapping[str, Any], name: str) -> None:
    """Raises UsageError where a context that goes to another server has our context's name, or our user's: it would go
    to our cluster then, or take our token to its own."""
    servers = {str(one["name"]): _server(one) for one in old.get("clusters") or []}
    for one in old.get("contexts") or []:
        where = one.get("context") or {}
        server = servers.get(str(where.get("cluster")))
        is_named_so = ours["name"] in (one["name"], where.get("user")) and where.get("cluster") != ours["name"]
        if is_named_so and server != _server(ours):
            raise UsageError(
                f"{name}: context {one['name']} goes to another cluster there, {server}, as user {where.get('user')}: "
                f"{ours['name']} would change it; name another file with --file"
            )


def _server(cluster: Mapping[str, Any]) -> object:
    return (cluster.get("cluster") or {}).get("server")


def _is_ours(kubeconfig: Kubeconfig, name: str) -> bool:
    """Whether the user of this name runs our program: then its cluster is one that we wrote."""
    users = {one["name"]: one.get("user") or {} for one in kubeconfig.get("users") or []}
    program = users.get(name, {}).get("exec")
    arguments = program.get("args") if isinstance(program, dict) else None
    return isinstance(arguments, list) and "tasks.oci" in arguments
