"""Cluster of the settings: its connection with errors as exit codes, its provider, the values of its manifests."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import write_atomic
from bench.records.validation import AUTO
from remote.cluster.diagnosis.nodes import ANY_PRODUCT, GPU_RESOURCE
from remote.cluster.kubeconfig import Target, resolve
from remote.cluster.manifests import PREEMPTIBLE_OVERLAY, Image, ManifestValues
from remote.cluster.namespace_client import Cluster
from remote.cluster.settings import ClusterSection
from remote.hosts.pods.kubectl import ClusterError, Conflict, Forbidden, Misconfigured, Unreachable
from remote.providers import GENERIC, PROVIDERS, Provider, detect
from tasks.cli.terminal import confirm
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, TaskFailed, UsageError
from tasks.settings.layers import Settings

LAST_FILE, MANIFESTS = "cluster.json", "manifests"


@contextlib.contextmanager
def open_cluster(settings: Settings, *, changes: bool = False, yes: bool = False) -> Iterator[Cluster]:
    """Print and open the cluster of the settings; its errors become task errors. `changes`: the task changes objects.

    A task that changes a cluster that looks like production asks for confirmation, unless this project changed the
    same cluster last.
    """
    target = print_target(settings)
    with translate_cluster_errors():
        if changes:
            confirm_production(settings, target, yes=yes)
        cluster = Cluster(target, known_provider(settings))
        try:
            yield cluster
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted", remedy="running jobs continue; rerun the command to resume") from error
        finally:
            cluster.close()


def print_target(settings: Settings) -> Target:
    """Print and return the cluster of the settings, with a warning if another cluster was changed last."""
    target, last = resolve_target(settings), _read_last_cluster(settings)
    print(f"cluster: {target}", flush=True)
    if last and last != target_identity(target):
        previous = f"context {last.get('context')}, namespace {last.get('namespace')}"
        print(f"ATTENTION: another cluster or namespace than last time ({previous})", flush=True)
    return target


def resolve_target(settings: Settings) -> Target:
    """Resolve the cluster of the settings. A relative kubeconfig is below the project's folder. Raises UsageError."""
    section = settings.cluster
    kubeconfig = str(settings.resolve_path(section.kubeconfig)) if section.kubeconfig else None
    with translate_cluster_errors():
        return resolve(
            kubeconfig=kubeconfig,
            context=section.context,
            namespace=section.namespace,
            provider=known_provider(settings) or GENERIC,
        )


def record_last_cluster(results_folder: Path, target: Target) -> None:
    """Record the cluster that was changed last. Raises OSError."""
    results_folder.mkdir(parents=True, exist_ok=True)
    write_atomic(results_folder / LAST_FILE, (json.dumps(target_identity(target)) + "\n").encode())


@contextlib.contextmanager
def translate_cluster_errors() -> Iterator[None]:
    """Translate the cluster's errors: exit 2 needs a fix, 3 is transient, 4 another manager's field, 1 the rest."""
    try:
        yield
    except (Misconfigured, Forbidden) as error:
        raise UsageError.from_error(error) from error
    except Conflict as error:
        raise ConfirmationRequired.from_error(error) from error
    except Unreachable as error:
        raise RetryableError.from_error(error) from error
    except ClusterError as error:
        raise TaskFailed.from_error(error) from error


def target_identity(target: Target) -> dict[str, str]:
    """Return the context, server and namespace of a cluster, for a record."""
    return {"context": target.context, "server": target.server, "namespace": target.namespace}


def _read_last_cluster(settings: Settings) -> dict[str, str | None]:
    """Return the identity of the cluster that was changed last, or an empty dict."""
    try:
        last = schema.parse_object((settings.results_folder / LAST_FILE).read_bytes())
    except (OSError, ValueError):
        return {}  # missing, or not written by us
    return {key: last.get(key) for key in ("context", "server", "namespace")}


def confirm_production(settings: Settings, target: Target, *, yes: bool) -> None:
    """Ask before a cluster is changed that looks like production, unless it was changed last.

    Raises ConfirmationRequired.
    """
    if not target.looks_like_production or yes or _read_last_cluster(settings) == target_identity(target):
        return
    if not confirm(f"{target.context}/{target.namespace} looks like production. Change it?"):
        raise ConfirmationRequired(
            f"context {target.context}, namespace {target.namespace} looks like production and was not used before",
            remedy="pass --yes to confirm, or set cluster.context",
        )


def known_provider(settings: Settings) -> Provider | None:
    """Return the provider that the settings determine without a cluster, or None."""
    section = settings.cluster
    if section.provider != AUTO:
        return PROVIDERS[section.provider]
    images = filter(None, (settings.registry.image, section.image))
    return detect(registries=[image.partition("/")[0] for image in images], volume=section.volume.handle)


@dataclass(frozen=True, kw_only=True)
class PodPlacement:
    """Nodes and registry login of a deployment's pods: section cluster with the defaults of its provider.

    `preemptible_label`: label of the nodes to use, and key of their taint; None: any nodes.
    """

    section: ClusterSection
    provider: Provider
    overlay: str
    instance_type: str | None
    pull_secret: str | None
    preemptible_label: str | None

    @property
    def tolerations(self) -> list[dict[str, Any]]:
        """Tolerations of the pods, in addition to those of pods that run for long."""
        tolerations = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
        if self.preemptible_label is not None:
            tolerations.append({"key": self.preemptible_label, "operator": "Exists"})
        return tolerations


def place_pods(section: ClusterSection, provider: Provider, *, overlay: str | None = None) -> PodPlacement:
    """Return the placement; `overlay` replaces that of the section.

    Raises UsageError for a setting that the provider cannot fulfil.
    """
    uses_preemptible = section.preemptible or section.overlay == PREEMPTIBLE_OVERLAY
    if uses_preemptible and provider.preemptible_label is None:
        raise UsageError(
            f"cluster.preemptible: provider {provider.name} has no label for preemptible nodes",
            remedy="set it to false, and cluster.overlay to one other than preemptible",
        )
    handle = section.volume.handle
    if handle is not None and provider.volume_source(handle) is None:
        raise UsageError(
            f"cluster.volume.handle: {handle}: expected {provider.volume_form} for provider {provider.name}"
        )
    return PodPlacement(
        section=section,
        provider=provider,
        overlay=overlay or section.overlay,
        instance_type=section.instance_type or provider.instance_type,
        pull_secret=provider.pull_secret if section.pull_secret == AUTO else section.pull_secret,
        preemptible_label=provider.preemptible_label if uses_preemptible else None,
    )


def manifest_values(settings: Settings, placement: PodPlacement, image: Image) -> ManifestValues:
    """Return the values of the manifests: every text and number of section cluster, and some of other sections."""
    cluster, instance_type = placement.section, placement.instance_type
    copied = {**vars(cluster), **vars(cluster.volume), "size": settings.fleet.size, "profile": settings.bench.profile}
    copied |= {"model": settings.model.path, "data": settings.data.path, "pull_secret": placement.pull_secret}
    copied |= {"instance_type": instance_type or "any"}  # which the component any-node removes
    copied |= {"gpus_per_pod": str(cluster.gpus_per_pod), "least_up": settings.fleet.size - 1}
    components = {
        "any-node": instance_type is None,
        "several-per-node": not cluster.one_per_node,
        "gpu-product": cluster.gpu not in (None, ANY_PRODUCT),
        "cpu-limit": cluster.cpu_limit is not None,
    }
    return ManifestValues(
        namespace=cluster.namespace,
        overlay=placement.overlay,
        image=image,
        preemptible_label=placement.preemptible_label,
        pull_secret=placement.pull_secret,
        volume_source=None
        if cluster.volume.handle is None
        else placement.provider.volume_source(cluster.volume.handle),
        extra_settings={name: value for name, value in copied.items() if isinstance(value, (str, int))},
        components=tuple(name for name, is_used in components.items() if is_used),
    )
