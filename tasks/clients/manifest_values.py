"""The values of the manifests, from the settings. Pure."""

from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.manifests import Image, ManifestValues
from tasks.settings.load import Settings

MANIFESTS = "manifests"


def manifest_values(settings: Settings, image: Image) -> ManifestValues:
    """Return the values of the manifests: every text and number of section cluster, and some of other sections."""
    cluster = settings.cluster
    copied = {**dict(cluster), **dict(cluster.fss), "size": settings.fleet.size, "profile": settings.bench.profile}
    copied |= {"model": settings.model.path, "data": settings.data.path}
    copied |= {"gpus_per_pod": str(cluster.gpus_per_pod), "least_up": settings.fleet.size - 1}
    components = {
        "several-per-node": not cluster.one_per_node,
        "gpu-product": cluster.gpu not in (None, ANY_PRODUCT),
        "cpu-limit": cluster.cpu_limit is not None,
    }
    return ManifestValues(
        namespace=cluster.namespace,
        overlay=cluster.overlay,
        image=image,
        preemptible=cluster.preemptible,
        pull_secret=cluster.pull_secret,
        volume_handle=cluster.fss.volume_handle,
        extra_settings={name: value for name, value in copied.items() if isinstance(value, (str, int))},
        components=tuple(name for name, is_used in components.items() if is_used),
    )
