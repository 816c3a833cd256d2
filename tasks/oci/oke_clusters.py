"""`inv tenancy.kubeconfig`: write the kubeconfig of an OKE cluster, with our own credential plugin.

Certificate and server come from the service. The service's user would run the OCI CLI; it is replaced by `python -m
tasks.oci token`. The file contains no secret.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from invoke.context import Context
from oci import regions
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import CreateClusterKubeconfigContentDetails

from bench.records.atomic_files import open_atomic, read_regular
from remote.hosts.local import expand_user
from tasks.cli.command_result import CommandResult, plan_result
from tasks.errors import UsageError, file_errors
from tasks.oci.clients import TenancyApi, connect, resolve_compartment
from tasks.oci.discovery import choose_cluster, list_clusters
from tasks.settings.layers import Settings, load
from tasks.settings.sources import display_path

_MAX_BYTES = 16 << 20
_KUBECONFIG_VERSION = "2.0.0"  # the version whose user is a credential plugin


def write_kubeconfig(
    context: Context, cluster: str | None, endpoint: str | None, file: str | None, *, dry_run: bool = False
) -> CommandResult | None:
    if endpoint not in (None, "public", "private"):
        raise UsageError(f"tenancy.kubeconfig: --endpoint: expected public or private, found {endpoint!r}")
    settings = load(context)
    path = _target_path(settings, file)
    api = connect(settings)
    compartment, _ = resolve_compartment(settings, api)
    target = choose_cluster(list_clusters(api, compartment), cluster)
    name, endpoint_type = target["name"], endpoint or ("public" if target["public_endpoint"] else "private")
    if not target[f"{endpoint_type}_endpoint"]:
        raise UsageError(
            f"cluster {name} has no {endpoint_type} endpoint",
            remedy=f"type: inv tenancy.kubeconfig --endpoint {'private' if endpoint_type == 'public' else 'public'}",
        )
    fetched = api.get_bytes(
        f"reading the kubeconfig of {name}",
        "use clusters",
        api.client(ContainerEngineClient).create_kubeconfig,
        target["id"],
        create_cluster_kubeconfig_content_details=CreateClusterKubeconfigContentDetails(
            token_version=_KUBECONFIG_VERSION, endpoint=f"{endpoint_type.upper()}_ENDPOINT"
        ),
    )
    document = build_kubeconfig(fetched, name, token_command(settings, api, target["id"]))
    content = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    is_new = _is_new(path, content, name)
    if dry_run:
        line = f"{'write' if is_new else 'keep'}  {display_path(path)}: context {name}, {endpoint_type}"
        data = {"file": str(path), "context": name, "cluster": target["id"], "endpoint": endpoint_type}
        return plan_result([line], **data, changes=is_new)
    if is_new:
        with file_errors(f"{display_path(path)}: cannot be written", "choose another with --file"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open_atomic(path, mode=0o600) as config:
                config.write(content)
        print(f"wrote {display_path(path)}, readable only by you")
    else:
        print(f"{display_path(path)} already has context {name}; nothing changed")
    print(
        f"to see its nodes with `inv nodes`, set cluster: {{ kubeconfig: {display_path(path)} }} in ~/.invoke.yaml; "
        "kubectl reads several files, in KUBECONFIG"
    )
    if endpoint_type == "private":
        print("its endpoint is private: connect from the cluster's network (a VPN, or a bastion's tunnel)")
    return None


def _is_new(path: Path, content: bytes, name: str) -> bool:
    """Return False if the file has this content. Raises UsageError if it has another, which is never written over."""
    if not path.exists():
        return True
    with file_errors(f"{display_path(path)}: cannot be read", "choose another with --file"):
        old = read_regular(path, max_bytes=_MAX_BYTES)
    if old != content:
        raise UsageError(
            f"{display_path(path)}: exists, and has other contexts or settings",
            remedy=f"remove it, or type: inv tenancy.kubeconfig --file ~/.kube/{name}",
        )
    return False


def _target_path(settings: Settings, file: str | None) -> Path:
    if file is not None:
        return settings.resolve_typed_path(file)
    if settings.cluster.kubeconfig:
        return settings.resolve_path(settings.cluster.kubeconfig)
    first = next(filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)), "~/.kube/config")
    return expand_user(first)


def token_command(settings: Settings, api: TenancyApi, cluster_id: str) -> tuple[str, ...]:
    """Return the credential plugin's command line, without secrets. -P avoids importing a tasks.py of the folder."""
    section = settings.tenancy
    domain = regions.REALMS[regions.get_realm_from_region(api.region)]
    host = f"containerengine.{api.region}.{domain}"
    program = (sys.executable, "-P", "-m", "tasks.oci")
    arguments = ("--cluster", cluster_id, "--host", host, "--region", api.region)
    file = settings.resolve_path(section.config_file)
    return (*program, "token", *arguments, "--config-file", str(file), "--profile", section.profile)


def build_kubeconfig(fetched: bytes | str, name: str, token_program: Sequence[str]) -> dict[str, Any]:
    """Build a kubeconfig with only the first cluster of YAML; all entries have its `name`. Raises UsageError."""
    try:
        cluster = dict(yaml.safe_load(fetched)["clusters"][0]["cluster"])
        server = str(cluster["server"])
    except (yaml.YAMLError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the service's kubeconfig for {name} has no cluster") from error
    if not server.startswith("https://") or cluster.get("insecure-skip-tls-verify"):
        raise UsageError(f"the service's kubeconfig for {name} is not safe: {server[:80]}")
    exec_plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": token_program[0],
        "args": list(token_program[1:]),
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": exec_plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
