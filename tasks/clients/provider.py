"""Provider of the settings: the one that cluster.provider names, else that of the registry, the volume or the nodes."""

from remote.cluster.client import Cluster
from remote.providers import PROVIDERS, Provider, detect
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.settings.schema import AUTO


def known_provider(settings: Settings) -> Provider | None:
    """Return the provider that the settings determine without a cluster, or None."""
    section = settings.cluster
    if section.provider != AUTO:
        return PROVIDERS[section.provider]
    images = filter(None, (settings.registry.image, section.image))
    return detect(registries=[image.partition("/")[0] for image in images], volume=section.volume.handle)


def resolve_provider(settings: Settings, cluster: Cluster) -> Settings:
    """Return the settings with the cluster's provider, and its defaults for what is left to it.

    Raises UsageError for a setting that this provider cannot fulfil.
    """
    section, provider = settings.cluster, cluster.provider
    if uses_preemptible_nodes(settings) and provider.preemptible_label is None:
        raise UsageError(
            f"cluster.preemptible: provider {provider.name} has no label for preemptible nodes",
            remedy="set it to false, and cluster.overlay to one other than preemptible",
        )
    handle = section.volume.handle
    if handle is not None and provider.volume_source(handle) is None:
        raise UsageError(
            f"cluster.volume.handle: {handle}: expected {provider.volume_form} for provider {provider.name}"
        )
    resolved = {
        "provider": provider.name,
        "instance_type": section.instance_type or provider.instance_type,
        "pull_secret": provider.pull_secret if section.pull_secret == AUTO else section.pull_secret,
    }
    return settings.model_copy(update={"cluster": section.model_copy(update=resolved)})


def resolved_provider(settings: Settings) -> Provider:
    """Return the provider of the settings that `resolve_provider` returned. Raises KeyError for others."""
    return PROVIDERS[settings.cluster.provider]


def uses_preemptible_nodes(settings: Settings) -> bool:
    return settings.cluster.preemptible or settings.cluster.overlay == "preemptible"
