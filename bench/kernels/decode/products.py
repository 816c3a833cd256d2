"""y = x W^T for few rows of x, with W in NF4 (`bench.kernels.nf4`), which is never written out.

    h = rms_norm(x)                             where there is a norm
    y = h W^T + s (h A^T) B^T + onto            or silu(h G^T) * (h U^T), gate and up joined

A decoding step multiplies every weight by one row per sequence, so it is bound by reading the weights: N K / 2 bytes of
codes and N K / 64 of scales for N x K numbers. bitsandbytes has a kernel for a single row; for more it writes the whole
matrix in 16 bits and reads it back.

The codes become operands of the tensor cores in registers (`products.cu`), eight rows of x at a time, and the adapters'
side is made meanwhile by a few of the blocks. On an H200 Mistral's four products of a layer take 52 us for 1 row and 56
for 8, with adapters of rank 16 on q, k, v and o 54 and 59; 96 for 16 rows and 190 for 32. Against W dequantized and
multiplied by torch, results differ by rounding alone: levels and inputs are rounded to bf16, everything else is
float32. Sums are added in a fixed order.

Not covered: more than 32 rows; weights that `nf4.from_bitsandbytes` refuses, rows that are no multiple of 16, columns
that are no multiple of 64; adapters of a rank that leaves no room in shared memory (128 at 32 rows on an A10); GPUs
before compute capability 8.0.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.kernels.decode import nvrtc
from bench.kernels.launch import parts
from bench.kernels.nf4 import BLOCK, MOST_WEIGHTS, Nf4, NotDoubleNf4, from_bitsandbytes

MOST_ROWS = 32
LEAST_CAPABILITY = (8, 0)
HERE = Path(__file__).parent
HIGH, TILE = 16, 8  # as in products.cu
ROW, STAGE = 160, 16 * 160 + 16 * 8
# Warps of a block, blocks on a multiprocessor, chunks that a warp has under way; the first that fits in shared memory.
DIVISIONS = ((8, 2, 2), (8, 1, 2), (4, 1, 2), (4, 1, 1))
LANES, LEVELS = 32, 256
RESERVED = 1024  # bytes of shared memory that a block takes for itself


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
class Lora:
    """An adapter of one weight: A (R, K) and B (N, R); `scaling` is s."""

    a: Any
    b: Any
    scaling: float


class Product:
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
        adapters: tuple[Lora | None, ...] = (),
        most_rows: int,
    ) -> None:
        device = weights[0].packed.device
        self._columns, self._gated = weights[0].shape[1], gated
        lora = _joined(adapters, most_rows, device) if any(adapters) else None
        self._kept = norm, weights, lora  # what the kernel reads by address
        self._tiles = _tiles(most_rows)
        heights = [weight.shape[0] for weight in weights]
        self._stride = heights[0] if gated else sum(heights)
        step = HIGH // 2 if gated else HIGH
        self._arguments = _Arguments(
            levels=weights[0].levels.data_ptr(),
            norm=None if norm is None else norm.weight.data_ptr(),
            stride=self._stride,
            parts=parts(self._stride, step),
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
        rank = 0 if lora is None else lora.rank
        self._warps, resident, stages, self._shared = _division(properties, len(weights), self._tiles, rank)
        # Blocks beyond the parts have a row of A each, or none.
        wanted = self._arguments.parts + (0 if lora is None else len(lora.a))
        self._blocks = min(wanted, resident * properties.multi_processor_count)
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
                ("RESIDENT", resident),
                ("STAGES", stages),
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


def _division(properties: Any, weights: int, tiles: int, rank: int) -> tuple[int, int, int, int]:
    """(warps of a block, blocks on a multiprocessor, chunks under way, bytes of shared memory). Raises ValueError."""
    for warps, resident, stages in DIVISIONS:
        shared = shared_bytes(weights, tiles, warps, stages, rank)
        if resident * (shared + RESERVED) <= properties.shared_memory_per_multiprocessor:
            return warps, resident, stages, shared
    raise ValueError(f"adapters of rank {rank} for {tiles * TILE} sequences: too much for the GPU's shared memory")


def shared_bytes(weights: int, tiles: int, warps: int, stages: int, rank: int = 0) -> int:
    """Of a block: the tables, the norm's factors, the warps' sums twice, u, rows of B, and copies of codes."""
    wide = TILE * tiles
    of_adapters = 4 * wide * weights * rank + 3 * 2 * HIGH * rank
    return 4 * (LEVELS * (LANES + weights) + wide + 2 * warps * HIGH * wide) + of_adapters + warps * stages * STAGE


def _joined(adapters: tuple[Lora | None, ...], most_rows: int, device: Any) -> _Joined:
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


def why_not(device: Any) -> str | None:
    """Why these kernels do not run on a device; None where they do."""
    if device.type != "cuda":
        return "no GPU"
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        return f"a GPU of compute capability {found[0]}.{found[1]}; 8.0 (A100, A10) or newer is needed"
    return nvrtc.why_not()


def why_no_room(device: Any, rows: int, rank: int) -> str | None:
    """Why three weights with adapters of this rank do not fit so many rows; None where they do."""
    try:
        _division(torch.cuda.get_device_properties(device), MOST_WEIGHTS, _tiles(rows), rank)
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
