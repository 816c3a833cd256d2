"""`inv image.size`: the image's layers, and what a push, a pull and a node need for it."""

import gzip
import io
import tarfile

from invoke.context import Context

from remote.image import docker_client as images
from remote.image.context import bench_files
from remote.image.docker_client import ImageLayer
from tasks.cli.flags import number
from tasks.clients.build_vm import build_vm
from tasks.clients.image_ref import recorded
from tasks.image import build_profiles
from tasks.image.build import client
from tasks.settings.load import Settings, load

# For the estimate before a first push: packages were seen to compress to this, weights hardly compress.
STACK_RATIO, WEIGHTS_RATIO = 0.6, 0.95


def show_size(context: Context, mbps: str, allocatable_gb: str) -> None:
    settings = load(context)
    bandwidth = number("image.size: --mbps", mbps, "a number above 0", lambda given: given > 0)
    room = number("image.size: --allocatable-gb", allocatable_gb, "a number above 0", lambda given: given > 0)
    name = build_profiles.image_name(settings)
    with build_vm(settings, "inv image.size") as host, images.connected(host, client(settings)) as sdk:
        layers = images.layers(sdk.images.get(name))
    for layer in layers:
        print(f"{layer.size / 1e6:12.2f} MB  {layer.kind:<8} {layer.step[:80]}")
    total = sum(layer.size for layer in layers)
    kinds = {
        kind: sum(layer.size for layer in layers if layer.kind == kind)
        for kind in ("weights", "stack", "system", "code")
    }
    print(
        f"{total / 1e6:12.2f} MB  in all: " + ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in kinds.items())
    )
    compressed, how = _compressed(settings, layers)
    print(
        f"an edit of bench pushes {_edit_bytes(settings) / 1e6:.3f} MB; a first push, {compressed / 1e9:.2f} GB ({how})"
    )
    pull_sec = compressed * 8 / (bandwidth * 1e6)
    lasts = f"{pull_sec:.0f} s" if pull_sec < 120 else f"{pull_sec / 60:.1f} min"
    print(f"a node with {bandwidth:g} Mb/s pulls it in {lasts}, unpacking not counted")
    # A node keeps the pulled layers beside the unpacked ones.
    needed = (total + compressed) / 1e9
    fits = "fits" if needed <= room else "does not fit: grow the nodes' boot volume"
    print(f"a node needs {needed:.1f} GB for it; of {room:g} GB allocatable that {fits}")


def _compressed(settings: Settings, layers: list[ImageLayer]) -> tuple[float, str]:
    """Bytes of the image in a registry: as reported after a push of this size, or an estimate."""
    try:
        pushed = recorded(settings)
        if pushed["size_bytes"] == sum(layer.size for layer in layers):
            return float(pushed["compressed_bytes"]), "as pushed"
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here: estimate it
    parts = ((layer.size * (WEIGHTS_RATIO if layer.kind == "weights" else STACK_RATIO)) for layer in layers)
    return sum(parts), f"estimated: {STACK_RATIO:g} of packages, {WEIGHTS_RATIO:g} of weights"


def _edit_bytes(settings: Settings) -> int:
    """The compressed size of bench's layer, which a change of one line pushes again."""
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in bench_files(settings.root):
            tar.add(path, arcname=f"opt/qlora-fleet/{path.relative_to(settings.root)}")
    return len(content.getvalue())
