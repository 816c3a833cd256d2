"""`inv image.size`: size of the image's layers, of a push, of a pull and on a node."""

from invoke.context import Context

from bench.records.units import format_gb, format_mb
from remote.image import engine
from remote.image.engine import ImageLayer
from tasks.cli.command_result import CommandResult
from tasks.clients.build_vm import build_vm
from tasks.clients.registry import read_push_record
from tasks.errors import escape_controls
from tasks.image import build_profiles
from tasks.image.build import engine_client
from tasks.settings.load import Settings, load

# Compression ratios for the estimate before a first push, as measured.
PACKAGES_RATIO, WEIGHTS_RATIO = 0.6, 0.95
AS_PUSHED = "as pushed"  # the source of a measured size


def show_size(context: Context, mbps: float, allocatable_gb: float) -> CommandResult:
    settings = load(context)
    with build_vm(settings, "inv image.size") as host, engine.connect(host, engine_client(settings)) as vm_engine:
        layers = vm_engine.layers(vm_engine.image(build_profiles.image_name(settings)).image_id)
    for layer in layers:
        print(escape_controls(f"{format_mb(layer.size, 2):>15}  {layer.kind:<8} {layer.step[:80]}"))
    total = sum(layer.size for layer in layers)
    sizes = {
        kind: sum(layer.size for layer in layers if layer.kind == kind)
        for kind in ("weights", "stack", "system", "code")
    }
    kinds = ", ".join(f"{kind} {format_mb(size, 2)}" for kind, size in sizes.items())
    print(f"{format_mb(total, 2):>15}  total: {kinds}")
    compressed, source = _compressed_bytes(settings, layers)
    code = format_mb(PACKAGES_RATIO * sum(layer.size for layer in layers if layer.step.startswith("COPY bench")), 3)
    print(f"an edit of bench pushes {code}; a first push, {format_gb(compressed, 2)} ({source})")
    pull_sec = compressed * 8 / (mbps * 1e6)
    duration = f"{pull_sec:.0f} s" if pull_sec < 120 else f"{pull_sec / 60:.1f} min"
    print(f"a node with {mbps:g} Mb/s pulls it in {duration}, without unpacking")
    # A node stores the pulled layers in addition to the unpacked ones.
    needed = total + compressed
    verdict = "fits" if needed <= allocatable_gb * 1e9 else "does not fit: grow the nodes' boot volume"
    print(f"a node needs {format_gb(needed)} for it and has {allocatable_gb:g} GB allocatable: {verdict}")
    return CommandResult(
        data={
            "layers": [{"bytes": layer.size, "kind": layer.kind, "step": layer.step} for layer in layers],
            "bytes": total,
            "bytes_by_kind": sizes,
            "compressed_bytes": round(compressed),
            "is_compressed_measured": source == AS_PUSHED,
            "pull_sec": pull_sec,
            "needed_on_node_bytes": round(needed),
            "fits": needed <= allocatable_gb * 1e9,
        }
    )


def _compressed_bytes(settings: Settings, layers: list[ImageLayer]) -> tuple[float, str]:
    """Return the image's bytes in a registry and their source: the recorded push of this size, or an estimate."""
    try:
        pushed = read_push_record(settings)
        if pushed["size_bytes"] == sum(layer.size for layer in layers):
            return float(pushed["compressed_bytes"]), AS_PUSHED
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    parts = ((layer.size * (WEIGHTS_RATIO if layer.kind == "weights" else PACKAGES_RATIO)) for layer in layers)
    return sum(parts), f"estimated: packages x {PACKAGES_RATIO:g}, weights x {WEIGHTS_RATIO:g}"
