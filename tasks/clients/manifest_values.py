"""The values of the manifests, from the settings. Pure."""

from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.manifests import Image, ManifestValues
from tasks.clients.provider import resolved_provider, uses_preemptible_nodes
from tasks.settings.load import Settings

MANIFESTS = "manifests"


def manifest_values(settings: Settings, image: Image) -> ManifestValues:
    """Return the values of the manifests: every text and number of section cluster, and some of other sections.

    `settings` are those of `resolve_provider`.
    """
    cluster, provider = settings.cluster, resolved_provider(settings)
    copied = {**dict(cluster), **dict(cluster.volume), "size": settings.fleet.size, "profile": settings.bench.profile}
    copied |= {"model": settings.model.path, "data": settings.data.path}
    copied |= {"instance_type": cluster.instance_type or "any"}  # which the component any-node removes
    copied |= {"gpus_per_pod": str(cluster.gpus_per_pod), "least_up": settings.fleet.size - 1}
    components = {
        "any-node": cluster.instance_type is None,
        "several-per-node": not cluster.one_per_node,
        "gpu-product": cluster.gpu not in (None, ANY_PRODUCT),
        "cpu-limit": cluster.cpu_limit is not None,
    }
    return ManifestValues(
        namespace=cluster.namespace,
        overlay=cluster.overlay,
        image=image,
        preemptible_label=provider.preemptible_label if uses_preemptible_nodes(settings) else None,
        pull_secret=cluster.pull_secret,
        volume_source=None if cluster.volume.handle is None else provider.volume_source(cluster.volume.handle),
        extra_settings={name: value for name, value in copied.items() if isinstance(value, (str, int))},
        components=tuple(name for name, is_used in components.items() if is_used),
    )
