"""Cluster of the settings: its connection with errors as exit codes, its provider, the values of its manifests."""

import contextlib
from collections.abc import Iterator

from bench.records.validation import AUTO
from remote.cluster.kubeconfig import Target, resolve
from remote.cluster.manifests import Image, ManifestValues
from remote.cluster.namespace_client import Cluster
from remote.cluster.settings import ClusterSection, PodPlacement
from remote.hosts.pods.kubectl import ClusterError, Forbidden, Misconfigured, Unreachable
from remote.providers import GENERIC, PROVIDERS, Provider, detect
from tasks.errors import Interrupted, RetryableError, TaskFailed, UsageError
from tasks.settings.layers import Settings

MANIFESTS = "manifests"


@contextlib.contextmanager
def open_cluster(settings: Settings) -> Iterator[Cluster]:
    """Print and open the cluster of the settings; its errors become task errors."""
    target = print_target(settings)
    with translate_cluster_errors():
        cluster = Cluster(target, known_provider(settings))
        try:
            yield cluster
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted", remedy="running jobs continue; rerun the command to resume") from error
        finally:
            cluster.close()


def print_target(settings: Settings) -> Target:
    """Print and return the cluster of the settings."""
    target = resolve_target(settings)
    print(f"cluster: {target}", flush=True)
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


@contextlib.contextmanager
def translate_cluster_errors() -> Iterator[None]:
    """Translate the cluster's errors: exit 2 needs a fix, 3 is transient, 1 the rest."""
    try:
        yield
    except (Misconfigured, Forbidden) as error:
        raise UsageError.from_error(error) from error
    except Unreachable as error:
        raise RetryableError.from_error(error) from error
    except ClusterError as error:
        raise TaskFailed.from_error(error) from error


def target_identity(target: Target) -> dict[str, str]:
    """Return the context, server and namespace of a cluster, for a record."""
    return {"context": target.context, "server": target.server, "namespace": target.namespace}


def known_provider(settings: Settings) -> Provider | None:
    """Return the provider that the settings determine without a cluster, or None."""
    section = settings.cluster
    if section.provider != AUTO:
        return PROVIDERS[section.provider]
    images = filter(None, (settings.registry.image, section.image))
    return detect(registries=[image.partition("/")[0] for image in images], volume=section.volume.handle)


def place_pods(section: ClusterSection, provider: Provider, *, overlay: str | None = None) -> PodPlacement:
    """Return the placement; `overlay` replaces that of the section.

    Raises UsageError for a setting that the provider cannot fulfil.
    """
    if section.preemptible and provider.preemptible_label is None:
        raise UsageError(
            f"cluster.preemptible: provider {provider.name} has no label for preemptible nodes",
            remedy="set it to false",
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
        preemptible_label=provider.preemptible_label if section.preemptible else None,
    )


def manifest_values(settings: Settings, placement: PodPlacement, image: Image) -> ManifestValues:
    """Return the values of the manifests."""
    size, model, data = settings.fleet.size, settings.model.path, settings.data.path
    others: dict[str, str | int] = {"size": size, "least_up": size - 1, "profile": settings.bench.profile}
    return ManifestValues(placement=placement, image=image, settings={**others, "model": model, "data": data})
