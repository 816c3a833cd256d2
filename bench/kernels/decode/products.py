"""Products y = x W^T for few rows of x, with W in NF4 (`bench.kernels.nf4`) and never written out.

    h = rms_norm(x)                             if there is a norm, else x
    y = h W^T + s (h A^T) B^T + residual        or silu(h G^T) * (h U^T), gate and up joined

A decoding step multiplies every weight by one row per sequence, so reading the weights limits its speed: N K / 2 bytes
of codes and N K / 64 of scales for N x K numbers. bitsandbytes has a kernel for a single row; for more it writes the
whole matrix in 16 bits and reads it back.

The codes become operands of the tensor cores in registers (`products.cu`), for eight rows of x at a time; a few blocks
compute u = s h A^T of the adapters meanwhile. On an H200 Mistral's four products of a layer take 48 us for 1 row and 52
for 8, with adapters of rank 16 on q, k, v and o. Compared with W dequantized and multiplied by torch, results differ
only by rounding: levels and inputs are rounded to bf16, everything else is float32. Sums are added in a fixed order.

Not covered: more than 32 rows; weights that `nf4.from_bitsandbytes` rejects or with rows that are not a multiple of 16
or columns that are not a multiple of 64; ranks that do not fit in shared memory (128 at 32 rows on an A10); GPUs before
compute capability 8.0.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.kernels.decode import nvrtc
from bench.kernels.nf4 import BLOCK, MAX_WEIGHTS, Nf4, UnsupportedQuantization, from_bitsandbytes
from bench.kernels.triton_compat import ceil_div

MAX_ROWS = 32
MIN_CAPABILITY = (8, 0)
HERE = Path(__file__).parent
PANEL_ROWS, TILE_ROWS = 16, 8  # must match products.cu
STAGE_BYTES = 16 * 160
CHUNK_COLUMNS = 4 * BLOCK  # columns that a warp processes at a time
MAX_HELD_CHUNKS = 2  # chunks of x that a warp keeps in registers for all rows of W
MAX_WARPS = 16
LANES, TABLE_ENTRIES = 32, 256
RESERVED_SHARED_BYTES = 1024  # shared memory that the driver reserves per block


class LaunchConfig(NamedTuple):
    """Division of a product among blocks and warps. A block computes one part, `panels` x 16 rows of W, at a time."""

    warps: int  # per block
    resident: int  # blocks per multiprocessor
    stages: int  # chunks that a warp loads ahead
    panels: int = 1


# The first configuration that fits in shared memory is used.
DEFAULT_CONFIGS = (
    LaunchConfig(8, 2, 2),
    LaunchConfig(8, 1, 2),
    LaunchConfig(4, 1, 2),
    LaunchConfig(4, 1, 1),
)


class _Weight(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "scale_levels", "scale_scales", "offset", "b")),
        ("rows", ctypes.c_int),
        ("first", ctypes.c_int),
    )


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("weights", _Weight * MAX_WEIGHTS),
        *((name, ctypes.c_void_p) for name in ("levels", "x", "norm", "residual", "a", "u", "launch", "y")),
        *((name, ctypes.c_int) for name in ("count", "stride", "parts")),
        *((name, ctypes.c_float) for name in ("eps", "scaling")),
    )


@dataclass(frozen=True, kw_only=True)
class Norm:
    """RMSNorm before the product: its weight (K,) in bf16."""

    weight: Any
    eps: float


@dataclass(frozen=True, kw_only=True)
class DecodeLora:
    """Adapter of one weight: A (R, K) and B (N, R); `scaling` is s."""

    a: Any
    b: Any
    scaling: float


class DecodeProduct:
    """Product with up to three weights that share their input, for at most `max_rows` rows of bf16.

    `gated`: the weights are gate and up. `adapters`: one per weight, or None; all have one rank and scaling. Sums are
    deterministic.
    """

    def __init__(
        self,
        weights: tuple[Nf4, ...],
        *,
        norm: Norm | None = None,
        gated: bool = False,
        adapters: tuple[DecodeLora | None, ...] = (),
        max_rows: int,
    ) -> None:
        device = weights[0].packed.device
        self._columns, self._gated = weights[0].shape[1], gated
        lora = _join_adapters(adapters, max_rows, device) if any(adapters) else None
        self._tensors = norm, weights, lora  # keeps alive the memory that the kernel addresses
        self._tiles = _tiles(max_rows)
        heights = [weight.shape[0] for weight in weights]
        self._stride = heights[0] if gated else sum(heights)
        self._arguments = _Arguments(
            levels=weights[0].levels.data_ptr(),
            norm=None if norm is None else norm.weight.data_ptr(),
            stride=self._stride,
            eps=0.0 if norm is None else norm.eps,
        )
        if lora is not None:
            self._arguments.a, self._arguments.scaling = lora.a.data_ptr(), lora.scaling
            self._arguments.u, self._arguments.launch = lora.u.data_ptr(), lora.launch.data_ptr()
        for index, weight in enumerate(weights):
            self._arguments.weights[index] = _Weight(
                codes=weight.packed.data_ptr(),
                scales=weight.scales.data_ptr(),
                scale_levels=weight.scale_levels.data_ptr(),
                scale_scales=weight.scale_scales.data_ptr(),
                offset=weight.offset.data_ptr(),
                b=None if lora is None or lora.b[index] is None else lora.b[index].data_ptr(),
                rows=heights[index],
                first=0 if gated else sum(heights[:index]),
            )
        properties = torch.cuda.get_device_properties(device)
        processors = properties.multi_processor_count
        rank, a_rows = (0, 0) if lora is None else (lora.rank, len(lora.a))
        panels = sum(heights) // PANEL_ROWS
        configs = launch_configs(
            self._columns, panels, self._tiles, processors, is_single=len(weights) == 1, has_norm=norm is not None
        )
        config = first_fitting(configs, properties, len(weights), self._columns, self._tiles, rank)
        self._warps = config.warps
        self._shared = shared_bytes(len(weights), self._columns, self._tiles, config, rank)
        # Blocks without a part compute rows of A: two rows each if otherwise some block would also have a part.
        self._arguments.parts, max_blocks = panels // config.panels, config.resident * processors
        a_rows_per_block = 2 if a_rows / 2 <= max_blocks - self._arguments.parts < a_rows else 1
        self._blocks = min(self._arguments.parts + ceil_div(a_rows, a_rows_per_block), max_blocks)
        self._kernel = nvrtc.load_kernel(
            HERE / "products.cu",
            "nf4_products",
            "sm_{}{}".format(*torch.cuda.get_device_capability(device)),
            (
                ("COLUMNS", self._columns),
                ("TILES", self._tiles),
                ("WEIGHTS", len(weights)),
                ("NORM", int(norm is not None)),
                ("GATED", int(gated)),
                ("RANK", rank),
                ("X_BLOCK_ROWS", min(max_rows, TILE_ROWS)),
                ("WARPS", self._warps),
                ("RESIDENT", config.resident),
                ("STAGES", config.stages),
                ("PANELS", config.panels),
                ("A_BLOCK_ROWS", a_rows_per_block),
            ),
        )

    def __call__(self, x: Any, residual: Any = None) -> Any:
        """Return y (count, N) in bf16. x: (count, K), contiguous; residual: (count, N), added to y."""
        count = len(x)
        y = torch.empty((count, self._stride), dtype=torch.bfloat16, device=x.device)
        arguments = self._arguments
        arguments.x, arguments.y, arguments.count = x.data_ptr(), y.data_ptr(), count
        arguments.residual = None if residual is None else residual.data_ptr()
        self._kernel((self._blocks,), LANES * self._warps, (arguments,), shared=self._shared)
        return y


@dataclass(frozen=True, kw_only=True)
class _JoinedAdapters:
    """Adapters of weights that share their input: all A concatenated in bf16, with zeros for a missing adapter.

    `u` and `launch` are the kernel's scratch memory: each element of u with the number of the launch that wrote it, and
    the number of the next launch.
    """

    a: Any
    b: tuple[Any, ...]
    u: Any
    launch: Any
    rank: int
    scaling: float


def _tiles(rows: int) -> int:
    return next(tiles for tiles in (1, 2, 4) if tiles * TILE_ROWS >= rows)


def launch_configs(
    columns: int, panels: int, tiles: int, processors: int, *, is_single: bool, has_norm: bool
) -> tuple[LaunchConfig, ...]:
    """Return configurations for a product of `panels` x 16 rows, fastest first, whether or not they fit the GPU."""
    chunks = ceil_div(columns, CHUNK_COLUMNS)
    if tiles == 1 and chunks > MAX_HELD_CHUNKS * DEFAULT_CONFIGS[0].warps:
        # x is read again for every part, unless 16 warps can keep it in registers; else two panels share each read.
        if chunks <= MAX_HELD_CHUNKS * MAX_WARPS:
            return LaunchConfig(MAX_WARPS, 1, 2), *DEFAULT_CONFIGS
        if is_single and not has_norm and panels % 2 == 0:
            # The number of warps that leaves the fewest idle in the last turn.
            warps = max(
                range(MAX_WARPS - 4, MAX_WARPS + 1), key=lambda warps: (-warps * ceil_div(chunks, warps), warps)
            )
            return LaunchConfig(warps, 1, 2, 2), *DEFAULT_CONFIGS
    # The busiest multiprocessor has less work if all its warps share each part.
    elif tiles == 1 and chunks >= MAX_WARPS and ceil_div(panels, processors) < 2 * ceil_div(panels, 2 * processors):
        return LaunchConfig(MAX_WARPS, 1, 2), *DEFAULT_CONFIGS
    return DEFAULT_CONFIGS


def first_fitting(
    configs: tuple[LaunchConfig, ...], properties: Any, weights: int, columns: int, tiles: int, rank: int
) -> LaunchConfig:
    """Return the first configuration whose blocks fit in shared memory. Raises ValueError."""
    for config in configs:
        shared = shared_bytes(weights, columns, tiles, config, rank) + RESERVED_SHARED_BYTES
        if config.resident * shared <= properties.shared_memory_per_multiprocessor:
            return config
    raise ValueError(f"adapters of rank {rank} for {tiles * TILE_ROWS} sequences exceed the GPU's shared memory")


def shared_bytes(weights: int, columns: int, tiles: int, config: LaunchConfig, rank: int = 0) -> int:
    """Return a block's shared memory: tables, norm factors, two sets of warp sums, u, rows of B, scales and codes."""
    max_rows, (warps, _, stages, panels) = TILE_ROWS * tiles, config
    part_rows, blocks = panels * PANEL_ROWS, columns // BLOCK
    table_bytes = 4 * (TABLE_ENTRIES * (LANES + weights) + max_rows + 2 * panels * warps * PANEL_ROWS * max_rows)
    slots = ceil_div(stages - 1, ceil_div(columns, CHUNK_COLUMNS * warps) * panels) + 2
    scale_bytes = part_rows * (ceil_div(blocks, 4) * 4 + 16) + 4 * (part_rows * blocks // 256 + 4)
    part_bytes = slots * (2 * part_rows * rank + ceil_div(scale_bytes, 16) * 16)
    return table_bytes + 4 * max_rows * weights * rank + part_bytes + warps * stages * STAGE_BYTES


def _join_adapters(adapters: tuple[DecodeLora | None, ...], max_rows: int, device: Any) -> _JoinedAdapters:
    first = next(adapter for adapter in adapters if adapter is not None)
    rank, columns = first.a.shape
    a = torch.zeros((len(adapters) * rank, columns), dtype=torch.bfloat16, device=device)
    for index, adapter in enumerate(adapters):
        if adapter is not None:
            a[index * rank : (index + 1) * rank] = adapter.a
    b = tuple(None if adapter is None else adapter.b.to(torch.bfloat16).contiguous() for adapter in adapters)
    return _JoinedAdapters(
        a=a,
        b=b,
        u=torch.zeros((max_rows, len(a)), dtype=torch.int64, device=device),
        launch=torch.tensor([1, 0], dtype=torch.int32, device=device),
        rank=int(rank),
        scaling=first.scaling,
    )


def unsupported_reason(device: Any) -> str | None:
    """Return why these kernels do not run on a device, or None."""
    if device.type != "cuda":
        return "no GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return f"a GPU of compute capability {capability[0]}.{capability[1]}; 8.0 (A100, A10) or newer is needed"
    return nvrtc.unsupported_reason()


def capacity_error(device: Any, columns: int, rows: int, rank: int) -> str | None:
    """Return why three weights with adapters of this rank do not fit `rows` rows, or None."""
    try:
        first_fitting(
            DEFAULT_CONFIGS, torch.cuda.get_device_properties(device), MAX_WEIGHTS, columns, _tiles(rows), rank
        )
    except ValueError as error:
        return str(error)
    return None


def supported_weight(weight: Any) -> Nf4 | None:
    """Convert a `Params4bit`; None if these kernels do not support it."""
    try:
        converted = from_bitsandbytes(weight)
    except UnsupportedQuantization:
        return None
    return converted if converted.shape[0] % PANEL_ROWS == 0 and converted.shape[1] % BLOCK == 0 else None
