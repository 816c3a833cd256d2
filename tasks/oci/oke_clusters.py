"""`inv tenancy.kubeconfig`: add an OKE cluster to a kubeconfig, with our own credential plugin.

Certificate and server come from the service. The service's user would run the OCI CLI; it is replaced by `python -m
tasks.oci token`. The file contains no secret, and its other entries stay unchanged.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from invoke.context import Context
from oci import regions
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import CreateClusterKubeconfigContentDetails

from bench.records.atomic_files import read_regular
from remote.hosts.local import expand_user
from tasks.cli.command_result import CommandResult, plan_result
from tasks.errors import UsageError, file_errors
from tasks.oci.clients import TenancyApi, connect, resolve_compartment
from tasks.oci.discovery import ClusterInfo, choose_cluster, list_clusters
from tasks.settings.layers import Settings, load
from tasks.settings.sources import display_path
from tasks.settings.user_config import back_up, write_private

_MAX_BYTES = 16 << 20
_KUBECONFIG_VERSION = "2.0.0"  # the version whose user is a credential plugin
_SECTIONS = ("clusters", "users", "contexts")
Kubeconfig = Mapping[str, Any]


def write_kubeconfig(
    context: Context, cluster: str | None, endpoint: str | None, file: str | None, *, dry_run: bool = False
) -> CommandResult | None:
    if endpoint not in (None, "public", "private"):
        raise UsageError(f"tenancy.kubeconfig: --endpoint: expected public or private, found {endpoint!r}")
    settings = load(context)
    path = _target_path(settings, file)
    old = read_kubeconfig(path)  # fails before the first request
    api = connect(settings)
    compartment, _ = resolve_compartment(settings, api)
    target = choose_cluster(list_clusters(api, compartment), cluster)
    endpoint_type = endpoint or ("public" if target.public_endpoint else "private")
    if not (target.public_endpoint if endpoint_type == "public" else target.private_endpoint):
        raise UsageError(
            f"cluster {target.name} has no {endpoint_type} endpoint",
            remedy=f"type: inv tenancy.kubeconfig --endpoint {'private' if endpoint_type == 'public' else 'public'}",
        )
    new = build_kubeconfig(
        _fetch_kubeconfig(api, target, endpoint_type), target, token_command(settings, api, target.id)
    )
    merged = merge(old, new, display_path(path))
    if dry_run:
        line = f"{'keep' if merged == old else 'write'}  {display_path(path)}: context {target.name}, {endpoint_type}"
        data = {"file": str(path), "context": target.name, "cluster": target.id, "endpoint": endpoint_type}
        return plan_result([line], **data, changes=merged != old)
    if merged == old:
        print(f"{display_path(path)} already has context {target.name}; nothing changed")
    else:
        _write(path, merged)
    print(f"to see its nodes with `inv nodes`, set cluster: {{ context: {target.name} }} in ~/.invoke.yaml")
    if endpoint_type == "private":
        print("its endpoint is private: connect from the cluster's network (a VPN, or a bastion's tunnel)")
    return None


def _write(path: Path, merged: Kubeconfig) -> None:
    with file_errors(f"{display_path(path)}: cannot be written", "choose another with --file"):
        if path.exists():
            print(f"saved the old file as {display_path(back_up(path))}")
        write_private(path, yaml.safe_dump(dict(merged), sort_keys=False, allow_unicode=True).encode())
    print(f"wrote {display_path(path)}, readable only by you")


def _target_path(settings: Settings, file: str | None) -> Path:
    if file is not None:
        return settings.resolve_typed_path(file)
    if settings.cluster.kubeconfig:
        return settings.resolve_path(settings.cluster.kubeconfig)
    first = next(filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)), "~/.kube/config")
    return expand_user(first)


def _fetch_kubeconfig(api: TenancyApi, cluster: ClusterInfo, endpoint_type: str) -> Kubeconfig:
    details = CreateClusterKubeconfigContentDetails(
        token_version=_KUBECONFIG_VERSION, endpoint=f"{endpoint_type.upper()}_ENDPOINT"
    )
    content = api.get_bytes(
        f"reading the kubeconfig of {cluster.name}",
        "use clusters",
        api.client(ContainerEngineClient).create_kubeconfig,
        cluster.id,
        create_cluster_kubeconfig_content_details=details,
    )
    return _parse(content, f"the service's kubeconfig for {cluster.name}")


def token_command(settings: Settings, api: TenancyApi, cluster_id: str) -> tuple[str, ...]:
    """Return the credential plugin's command line, without secrets. -P avoids importing a tasks.py of the folder."""
    section = settings.tenancy
    domain = regions.REALMS[regions.get_realm_from_region(api.region)]
    host = f"containerengine.{api.region}.{domain}"
    program = (sys.executable, "-P", "-m", "tasks.oci")
    arguments = ("--cluster", cluster_id, "--host", host, "--region", api.region)
    if section.auth == "instance_principal":
        return (*program, "instance-token", *arguments)
    file = settings.resolve_path(section.config_file)
    return (*program, "token", *arguments, "--config-file", str(file), "--profile", section.profile)


def build_kubeconfig(fetched: Kubeconfig, cluster_info: ClusterInfo, token_program: Sequence[str]) -> dict[str, Any]:
    """Build a kubeconfig with only this cluster; all entries have the cluster's name. Raises UsageError."""
    try:
        cluster = dict(fetched["clusters"][0]["cluster"])
        server = str(cluster["server"])
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"the service's kubeconfig for {cluster_info.name} has no cluster") from error
    if not server.startswith("https://") or cluster.get("insecure-skip-tls-verify"):
        raise UsageError(f"the service's kubeconfig for {cluster_info.name} is not safe: {server[:80]}")
    exec_plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": token_program[0],
        "args": list(token_program[1:]),
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    name = cluster_info.name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": exec_plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def read_kubeconfig(path: Path) -> dict[str, Any]:
    """Read the kubeconfig at `path`; empty if it does not exist. Raises UsageError for an unreadable file."""
    try:
        return _parse(read_regular(path, max_bytes=_MAX_BYTES), display_path(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(
            f"{display_path(path)}: cannot be read: {error.strerror}", remedy="choose another with --file"
        ) from error


def _is_kubeconfig(document: Any) -> bool:
    """Tell whether a document has the parts of a kubeconfig that are read; the rest is copied."""
    if not isinstance(document, dict) or document.get("kind", "Config") != "Config":
        return False
    sections = {key: document.get(key) or [] for key in _SECTIONS}
    return all(
        isinstance(entries, list)
        and all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries)
        and all(isinstance(entry.get(key[:-1]) or {}, dict) for entry in entries)
        for key, entries in sections.items()
    )


class _NoTimestampLoader(yaml.SafeLoader):
    """Safe YAML loader that keeps timestamps as text."""


_NoTimestampLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse(content: bytes, name: str) -> dict[str, Any]:
    remedy = "fix it, or choose another with --file; nothing was written"
    try:
        document = yaml.load(content.decode("utf-8"), _NoTimestampLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UsageError(
            f"{name}{f':{mark.line + 1}' if mark else ''}: cannot be read as YAML", remedy=remedy
        ) from error
    if document is None:
        return {}
    if not _is_kubeconfig(document):
        raise UsageError(f"{name}: not a kubeconfig", remedy=remedy)
    kubeconfig: dict[str, Any] = document
    return kubeconfig


def merge(old: Kubeconfig, new: Kubeconfig, file: str) -> dict[str, Any]:
    """Merge `new`, a cluster with its user and context, into `old`, keeping the current context.

    Raises UsageError if the name is in use there for anything else: a context would change to our cluster, or send our
    token to its own.
    """
    name = new["current-context"]
    if name in _used_names(old) and not _uses_our_program(old, name):
        raise UsageError(
            f"{file}: {name} is in use there, and not from `inv tenancy.kubeconfig`",
            remedy="choose another file with --file",
        )
    merged = {"apiVersion": "v1", "kind": "Config", **old}
    for key in _SECTIONS:
        merged[key] = list({item["name"]: item for item in (*(old.get(key) or []), *new[key])}.values())
    merged["current-context"] = old.get("current-context") or name
    return merged


def _used_names(kubeconfig: Kubeconfig) -> list[object]:
    """List the names of entries, and those that contexts refer to."""
    entries = [entry for key in _SECTIONS for entry in kubeconfig.get(key) or []]
    contexts = [entry.get("context") or {} for entry in entries]
    referred = [context.get(key) for context in contexts for key in ("cluster", "user")]
    return [*(entry["name"] for entry in entries), *referred]


def _uses_our_program(kubeconfig: Kubeconfig, name: str) -> bool:
    """Return whether this user runs our credential plugin, so that we wrote its cluster."""
    users = {user["name"]: user.get("user") or {} for user in kubeconfig.get("users") or []}
    program = users.get(name, {}).get("exec")
    arguments = program.get("args") if isinstance(program, dict) else None
    return isinstance(arguments, list) and "tasks.oci" in arguments
