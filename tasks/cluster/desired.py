"""What the settings ask for: the image by its digest, the values of the manifests."""

import dataclasses
import json

from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.manifests import Image, Values
from tasks.errors import UsageError
from tasks.settings.load import Settings


def image_of(settings: Settings) -> Image:
    """The image to run: cluster.image, or what `inv push` wrote. Raises UsageError; a tag alone is refused."""
    if settings.cluster.image is not None:
        try:
            return Image.parse(settings.cluster.image)
        except ValueError as error:
            raise UsageError(
                f"cluster.image: {error}, and a tag can move under running pods; write HOST/REPOSITORY@sha256:..., "
                "as `inv push` prints it"
            ) from None
    path = settings.image_file
    try:
        pushed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path}: not there; `inv push` writes it, or set cluster.image to HOST/REPOSITORY@sha256:..."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}; `inv push` writes it anew") from None
    try:
        sizes = [pushed.get(key) for key in ("size_bytes", "compressed_bytes")]
        size = sum(sizes) if all(isinstance(one, int) for one in sizes) else None
        image, requires = Image.parse(f"{pushed['repository']}@{pushed['digest']}", size), pushed.get("requires")
        return dataclasses.replace(image, requires=requires if isinstance(requires, str) else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: not what `inv push` writes ({error}); `inv push` writes it anew") from None


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
