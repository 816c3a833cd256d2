"""y = x W^T for few rows of x, with W in NF4 (`bench.kernels.nf4`), which is never written out.

    h = rms_norm(x)                             where there is a norm
    y = h W^T + s (h A^T) B^T + onto            or silu(h G^T) * (h U^T), gate and up joined

A decoding step multiplies every weight by one row per sequence, so it is bound by reading the weights: N K / 2 bytes of
codes and N K / 64 of scales for N x K numbers. bitsandbytes has a kernel for a single row; for more it writes the whole
matrix in 16 bits and reads it back.

The codes become operands of the tensor cores in registers (`products.cu`), eight rows of x at a time, and the adapters'
side is made meanwhile by a few of the blocks. On an H200 Mistral's four products of a layer take 48 us for 1 row and 52
for 8, with adapters of rank 16 on q, k, v and o. Against W dequantized and multiplied by torch, results differ by
rounding alone: levels and inputs are rounded to bf16, everything else is float32. Sums are added in a fixed order.

Not covered: more than 32 rows; weights that `nf4.from_bitsandbytes` refuses, rows that are no multiple of 16, columns
that are no multiple of 64; adapters of a rank that leaves no room in shared memory (128 at 32 rows on an A10); GPUs
before compute capability 8.0.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.kernels.decode import nvrtc
from bench.kernels.nf4 import BLOCK, MOST_WEIGHTS, Nf4, NotDoubleNf4, from_bitsandbytes
from bench.kernels.triton_compat import parts

MOST_ROWS = 32
LEAST_CAPABILITY = (8, 0)
HERE = Path(__file__).parent
HIGH, TILE = 16, 8  # as in products.cu
STAGE = 16 * 160
CHUNK = 4 * BLOCK  # columns that a warp takes at a time
HELD = 2  # chunks of x that a warp holds in registers for all rows of W
MOST_WARPS = 16
LANES, LEVELS = 32, 256
RESERVED = 1024  # bytes of shared memory that a block takes for itself


class Division(NamedTuple):
    """How a product is divided: warps of a block, blocks on a multiprocessor, chunks that a warp has under way, and
    panels of 16 rows of W in a part, which is what a block computes at a time."""

    warps: int
    resident: int
    stages: int
    panels: int = 1


# The first that fits in shared memory.
DIVISIONS = (
    Division(8, 2, 2),
    Division(8, 1, 2),
    Division(4, 1, 2),
    Division(4, 1, 1),
)


class _Weight(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "scale_levels", "scale_scales", "offset", "b")),
        ("rows", ctypes.c_int),
        ("first", ctypes.c_int),
    )


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("weights", _Weight * MOST_WEIGHTS),
        *((name, ctypes.c_void_p) for name in ("levels", "x", "norm", "onto", "a", "u", "launch", "y")),
        *((name, ctypes.c_int) for name in ("count", "stride", "parts")),
        *((name, ctypes.c_float) for name in ("eps", "scaling")),
    )


@dataclass(frozen=True, kw_only=True)
class Norm:
    """An RMSNorm before the product: its weight (K,) in bf16."""

    weight: Any
    eps: float


@dataclass(frozen=True, kw_only=True)
class DecodeLora:
    """An adapter of one weight: A (R, K) and B (N, R); `scaling` is s."""

    a: Any
    b: Any
    scaling: float


class DecodeProduct:
    """The product of up to three weights that share their input, for at most `most_rows` rows of bf16.

    `gated`: the weights are gate and up. `adapters`: one for each weight, None where there is none; all of one rank and
    scaling. Deterministic.
    """

    def __init__(
        self,
        weights: tuple[Nf4, ...],
        *,
        norm: Norm | None = None,
        gated: bool = False,
        adapters: tuple[DecodeLora | None, ...] = (),
        most_rows: int,
    ) -> None:
        device = weights[0].packed.device
        self._columns, self._gated = weights[0].shape[1], gated
        lora = _joined(adapters, most_rows, device) if any(adapters) else None
        self._kept = norm, weights, lora  # what the kernel reads by address
        self._tiles = _tiles(most_rows)
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
        for place, weight in enumerate(weights):
            self._arguments.weights[place] = _Weight(
                codes=weight.packed.data_ptr(),
                scales=weight.scales.data_ptr(),
                scale_levels=weight.scale_levels.data_ptr(),
                scale_scales=weight.scale_scales.data_ptr(),
                offset=weight.offset.data_ptr(),
                b=None if lora is None or lora.b[place] is None else lora.b[place].data_ptr(),
                rows=heights[place],
                first=0 if gated else sum(heights[:place]),
            )
        properties = torch.cuda.get_device_properties(device)
        processors = properties.multi_processor_count
        rank, of_a = (0, 0) if lora is None else (lora.rank, len(lora.a))
        panels = sum(heights) // HIGH
        wanted = divisions(
            self._columns, panels, self._tiles, processors, is_single=len(weights) == 1, has_norm=norm is not None
        )
        division = fitting(wanted, properties, len(weights), self._columns, self._tiles, rank)
        self._warps = division.warps
        self._shared = shared_bytes(len(weights), self._columns, self._tiles, division, rank)
        # Blocks beyond the parts have rows of A; where few are left, two each, so that none has a part beside it.
        self._arguments.parts, most = panels // division.panels, division.resident * processors
        of_u = 2 if of_a / 2 <= most - self._arguments.parts < of_a else 1
        self._blocks = min(self._arguments.parts + parts(of_a, of_u), most)
        self._kernel = nvrtc.kernel(
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
                ("SIDE", min(most_rows, TILE)),
                ("WARPS", self._warps),
                ("RESIDENT", division.resident),
                ("STAGES", division.stages),
                ("PANELS", division.panels),
                ("OF_U", of_u),
            ),
        )

    def __call__(self, x: Any, onto: Any = None) -> Any:
        """y (count, N) in bf16 of x (count, K), contiguous."""
        count = len(x)
        y = torch.empty((count, self._stride), dtype=torch.bfloat16, device=x.device)
        arguments = self._arguments
        arguments.x, arguments.y, arguments.count = x.data_ptr(), y.data_ptr(), count
        arguments.onto = None if onto is None else onto.data_ptr()
        self._kernel((self._blocks,), LANES * self._warps, (arguments,), shared=self._shared)
        return y


@dataclass(frozen=True, kw_only=True)
class _Joined:
    """Adapters of weights that share their input: every A one below the other, zeros where there is none, in bf16.

    `u` and `launch` are the kernel's own room: numbers beside the launch that made them, and the next launch's number.
    """

    a: Any
    b: tuple[Any, ...]
    u: Any
    launch: Any
    rank: int
    scaling: float


def _tiles(rows: int) -> int:
    return next(tiles for tiles in (1, 2, 4) if tiles * TILE >= rows)


def divisions(
    columns: int, panels: int, tiles: int, processors: int, *, is_single: bool, has_norm: bool
) -> tuple[Division, ...]:
    """Ways to divide a product of `panels` of 16 rows, the fastest first. What a GPU has room for is not asked here."""
    chunks = parts(columns, CHUNK)
    if tiles == 1 and chunks > HELD * DIVISIONS[0].warps:
        # x is read again for every part: by 16 warps it can be held, or two panels share what was read.
        if chunks <= HELD * MOST_WARPS:
            return Division(MOST_WARPS, 1, 2), *DIVISIONS
        if is_single and not has_norm and panels % 2 == 0:
            # As many warps as leave the fewest idle in the last turn.
            warps = max(range(MOST_WARPS - 4, MOST_WARPS + 1), key=lambda warps: (-warps * parts(chunks, warps), warps))
            return Division(warps, 1, 2, 2), *DIVISIONS
    # The multiprocessor that has most to do has fewer parts where all its warps share each of them.
    elif tiles == 1 and chunks >= MOST_WARPS and parts(panels, processors) < 2 * parts(panels, 2 * processors):
        return Division(MOST_WARPS, 1, 2), *DIVISIONS
    return DIVISIONS


def fitting(
    wanted: tuple[Division, ...], properties: Any, weights: int, columns: int, tiles: int, rank: int
) -> Division:
    """The first division whose blocks fit in shared memory. Raises ValueError."""
    for division in wanted:
        shared = shared_bytes(weights, columns, tiles, division, rank) + RESERVED
        if division.resident * shared <= properties.shared_memory_per_multiprocessor:
            return division
    raise ValueError(f"adapters of rank {rank} for {tiles * TILE} sequences: too much for the GPU's shared memory")


def shared_bytes(weights: int, columns: int, tiles: int, division: Division, rank: int = 0) -> int:
    """Of a block: the tables, the norm's factors, the warps' sums twice, u, rows of B and scales, copies of codes."""
    wide, (warps, _, stages, panels) = TILE * tiles, division
    tall, blocks = panels * HIGH, columns // BLOCK
    tables = 4 * (LEVELS * (LANES + weights) + wide + 2 * panels * warps * HIGH * wide)
    slots = parts(stages - 1, parts(columns, CHUNK * warps) * panels) + 2
    of_scales = tall * (parts(blocks, 4) * 4 + 16) + 4 * (tall * blocks // 256 + 4)
    of_parts = slots * (2 * tall * rank + parts(of_scales, 16) * 16)
    return tables + 4 * wide * weights * rank + of_parts + warps * stages * STAGE


def _joined(adapters: tuple[DecodeLora | None, ...], most_rows: int, device: Any) -> _Joined:
    there = next(each for each in adapters if each is not None)
    rank, columns = there.a.shape
    a = torch.zeros((len(adapters) * rank, columns), dtype=torch.bfloat16, device=device)
    for place, each in enumerate(adapters):
        if each is not None:
            a[place * rank : (place + 1) * rank] = each.a
    b = tuple(None if each is None else each.b.to(torch.bfloat16).contiguous() for each in adapters)
    return _Joined(
        a=a,
        b=b,
        u=torch.zeros((most_rows, len(a)), dtype=torch.int64, device=device),
        launch=torch.tensor([1, 0], dtype=torch.int32, device=device),
        rank=int(rank),
        scaling=there.scaling,
    )


def unsupported_reason(device: Any) -> str | None:
    """Why these kernels do not run on a device; None where they do."""
    if device.type != "cuda":
        return "no GPU"
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        return f"a GPU of compute capability {found[0]}.{found[1]}; 8.0 (A100, A10) or newer is needed"
    return nvrtc.unsupported_reason()


def why_no_room(device: Any, columns: int, rows: int, rank: int) -> str | None:
    """Why three weights with adapters of this rank do not fit so many rows; None where they do."""
    try:
        fitting(DIVISIONS, torch.cuda.get_device_properties(device), MOST_WEIGHTS, columns, _tiles(rows), rank)
    except ValueError as error:
        return str(error)
    return None


def covered(weight: Any) -> Nf4 | None:
    """The weight of a `Params4bit`; None where these kernels do not cover it."""
    try:
        found = from_bitsandbytes(weight)
    except NotDoubleNf4:
        return None
    return found if found.shape[0] % HIGH == 0 and found.shape[1] % BLOCK == 0 else None
