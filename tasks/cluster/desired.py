"""What the settings ask for, as the values of the manifests."""

from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.manifests import Image, Values
from tasks.settings.load import Settings


def values_of(settings: Settings, image: Image) -> Values:
    """The values of the manifests: every text and number of section cluster, and some of others."""
    cluster = settings.cluster
    given = {**dict(cluster), **dict(cluster.fss), "size": settings.fleet.size, "profile": settings.bench.profile}
    given |= {"model": settings.model.path, "data": settings.data.path}
    given |= {"gpus_per_pod": str(cluster.gpus_per_pod), "least_up": settings.fleet.size - 1}
    asked = {
        "several-per-node": not cluster.one_per_node,
        "gpu-product": cluster.gpu not in (None, ANY_PRODUCT),
        "cpu-limit": cluster.cpu_limit is not None,
    }
    return Values(
        namespace=cluster.namespace,
        overlay=cluster.overlay,
        image=image,
        preemptible=cluster.preemptible,
        pull_secret=cluster.pull_secret,
        volume_handle=cluster.fss.volume_handle,
        copied={name: value for name, value in given.items() if isinstance(value, (str, int))},
        components=tuple(name for name, is_asked in asked.items() if is_asked),
    )
