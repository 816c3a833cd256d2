"""A frozen weight that is multiplied in 8 bits, with the outlier columns of its input in 16 bits.

The outlier columns are those with the largest numbers in this process's first input, and stay fixed: a model's outlier
columns hardly change between texts, and searching for them each time would cost a pass over every input. To get the
same bits after a restart, the first input must be the same, with new adapters.

Tiles of the INT8 products, found on the GPU that runs them and kept in a file.

At the first build of a step, each product's candidates (`bench.kernels.int8.matmul.candidates`) are timed for about a
second in all, before anything is captured. The file is in the user's cache, one for each GPU and software. It names
candidates and contains no sizes, so a damaged or foreign file selects one of our own tiles or nothing. The choice
changes no bit of a result (`tests/gpu/test_int8.py`).

QLORA_FLEET_TILES=default uses the default tiles. Several ranks measure nothing: they use the file, or the default.
"""

import dataclasses
import hashlib
import json
import os
import stat
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.data.inputs import InputError
from bench.kernels import nf4
from bench.kernels.int8 import matmul, row_quant, weight_quant
from bench.kernels.int8.matmul import SideInputs, product, product_as_blocks
from bench.kernels.int8.row_quant import BLOCK, OutlierColumns, QuantizedRows
from bench.kernels.triton_compat import HAS_TRITON, gpu_properties, triton
from bench.records.atomic_files import read_regular, write_atomic

VARIABLE, CHOICES = "QLORA_FLEET_TILES", ("auto", "default")
ROUNDS, CALLS = 5, 2
MIN_GAIN = 0.01  # a candidate that gains less than this share of the time does not replace the default
MAX_FILE_BYTES = 1 << 16
MAX_OUTLIER_COLUMNS = 32

Shape = tuple[int, int]  # rows and columns of the frozen side, (N, K)


def use_best_tiles(torch: Any, device: Any, shapes: Sequence[Shape], tokens: int) -> str:
    """Select the tiles of products with these shapes for this process, and return a note for the record.

    Raises InputError for another value of QLORA_FLEET_TILES than CHOICES.
    """
    if (mode := os.environ.get(VARIABLE) or "auto") not in CHOICES:
        raise InputError(f"{VARIABLE}: expected {' or '.join(CHOICES)}, found {mode!r}")
    matmul.select_tiles({})
    candidates = matmul.candidates(gpu_properties(device)[0])
    if mode == "default" or len(candidates) < 2:
        return "INT8 tiles default"
    fingerprint = json.dumps(_fingerprint(torch, device) | {"tokens": tokens}, sort_keys=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "qlora-fleet", "int8-tiles")
    path = cache / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:32]}.json"
    source, chosen = "from the file", read_choice(path, shapes, candidates)
    if chosen is None:
        ranks = torch.distributed
        if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
            return "INT8 tiles default (several ranks measure none)"
        chosen = choose(shapes, list(candidates), _timer(torch, device, candidates, tokens))
        source = "measured" + write_choice(path, chosen)
    matmul.select_tiles({shape: candidates[name] for shape, name in chosen.items()})
    names = " ".join(f"{rows}x{columns}:{name}" for (rows, columns), name in chosen.items())
    return f"INT8 tiles {names} ({source})"


def choose(shapes: Sequence[Shape], names: Sequence[str], seconds: Callable[[Shape, str], float]) -> dict[Shape, str]:
    """Return the fastest candidate of each shape by the median of ROUNDS; the first name is the default."""
    chosen = {}
    for shape in dict.fromkeys(shapes):
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):  # in turns, so that a changing clock slows all
            for name in names:
                times[name].append(seconds(shape, name))
        medians = {name: statistics.median(values) for name, values in times.items()}
        best = min(names, key=lambda name: medians[name])
        chosen[shape] = best if medians[best] < (1.0 - MIN_GAIN) * medians[names[0]] else names[0]
    return chosen


def read_choice(path: Path, shapes: Sequence[Shape], names: Mapping[str, Any]) -> dict[Shape, str] | None:
    """Read the candidate of each shape; None without a file of ours that names one for every shape."""
    try:
        status = path.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        document = json.loads(read_regular(path, max_bytes=MAX_FILE_BYTES, follow=False))
        chosen = {shape: document["tiles"][f"{shape[0]}x{shape[1]}"] for shape in shapes}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # the tiles are measured again and the file is replaced
    return chosen if all(isinstance(name, str) and name in names for name in chosen.values()) else None


def write_choice(path: Path, chosen: Mapping[Shape, str]) -> str:
    """Write the file; return "", or why it was not written."""
    document = {"tiles": {f"{rows}x{columns}": name for (rows, columns), name in chosen.items()}}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        return f", not kept: {error.strerror}"
    return ""


def _fingerprint(torch: Any, device: Any) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "capability": [properties.major, properties.minor],
        "processors": properties.multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kernel": hashlib.sha256(Path(matmul.__file__).read_bytes()).hexdigest(),
    }


def _timer(
    torch: Any, device: Any, candidates: Mapping[str, matmul.Tiles], tokens: int
) -> Callable[[Shape, str], float]:
    """Return a function that measures the seconds of a product with a candidate's tiles."""
    inputs: dict[Shape, Any] = {}
    generator = torch.Generator(device).manual_seed(0)  # the training's own random numbers stay the same

    def operands(shape: Shape) -> Any:
        if shape not in inputs:
            inputs.clear()  # one shape at a time: the largest takes half a GiB
            rows, columns = shape
            left, right = (
                torch.randint(-127, 128, (count, columns), dtype=torch.int8, device=device, generator=generator)
                for count in (tokens, rows)
            )
            outliers = torch.zeros((tokens, MAX_OUTLIER_COLUMNS), dtype=torch.bfloat16, device=device)
            weights = torch.zeros((rows, MAX_OUTLIER_COLUMNS), dtype=torch.bfloat16, device=device)
            inputs[shape] = (
                QuantizedRows(values=left, scales=torch.ones(tokens, device=device), outliers=outliers),
                QuantizedRows(values=right, scales=torch.ones(rows, device=device)),
                matmul.SideInputs(outlier_weights=weights),
            )
            for tiles in candidates.values():  # compiles the kernels
                matmul.product(*inputs[shape], dtype=torch.bfloat16, tiles=tiles)
        return inputs[shape]

    def seconds(shape: Shape, name: str) -> float:
        arguments = operands(shape)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            matmul.product(*arguments, dtype=torch.bfloat16, tiles=candidates[name])
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / CALLS

    return seconds


MIN_WIDTH_PER_OUTLIER = 18  # a narrow input has at most one outlier column per 18 columns
MIN_CAPABILITY = (8, 0)
ROW_ALIGNMENT_BYTES = 16  # required of a matrix's rows by the hardware engine that copies tiles


class Int8Linear:
    """The weights `parts` of one product, concatenated by rows.

    `forward`: compute y = x W^T in 8 bits too, x and W rotated, not only d_x = d_y W. `hold`: keep the 8-bit values in
    memory, in the orientations that are used.
    """

    def __init__(self, parts: tuple[nf4.Nf4, ...], *, forward: bool, hold: bool) -> None:
        self._forward = forward
        self.is_training = True
        self.scales = weight_quant.row_scales(parts)
        self.outlier_columns: OutlierColumns | None = None
        self._parts, self._outlier_weights = parts, None
        self._rotated_scales = weight_quant.row_scales(parts, rotated=True) if forward else None
        self._held = weight_quant.quantize_rotated(parts, self._rotated_scales) if hold and forward else None
        self._held_transposed = weight_quant.quantize_transposed(parts, self.scales) if hold else None

    @property
    def forward(self) -> bool:
        """True if y = x W^T is currently computed in 8 bits."""
        return self._forward and self.is_training

    def product(self, x: Any, x_int8: QuantizedRows | None, side_inputs: SideInputs, *, in_blocks: bool) -> Any:
        """Compute y (T, N) in x's dtype with its side inputs.

        With `in_blocks`, y is gate and up, in one weight or two, as `QuantizedBlocks` if each consists of whole blocks.
        `x_int8` is x in 8 bits without the outlier columns, if already quantized; then x may be None.
        """
        if x_int8 is None:
            if self.outlier_columns is None:
                self._choose_outliers(x)
            x_int8 = row_quant.quantize_rows(x, columns=self.outlier_columns)
        values, scales = self._held, self._rotated_scales
        if values is None:
            values = weight_quant.quantize_rotated(self._parts, scales)
        side_inputs = dataclasses.replace(side_inputs, outlier_weights=self._outlier_weights)
        in_blocks = in_blocks and len(self.scales) % (2 * BLOCK) == 0
        multiply = product_as_blocks if in_blocks else product
        return multiply(x_int8, QuantizedRows(values=values, scales=scales), side_inputs, dtype=x_int8.dtype)

    def input_gradient(self, d_y: Any, d_y_int8: QuantizedRows | None) -> Any:
        """Compute d_x (T, K) in d_y's dtype. `d_y_int8` is d_y times `scales` in 8 bits, if already quantized."""
        return next(self.input_gradient_in_parts(d_y, d_y_int8, 1))

    def input_gradient_in_parts(self, d_y: Any, d_y_int8: QuantizedRows | None, parts: int) -> Iterator[Any]:
        """Compute d_x like `input_gradient`, with the tokens in `parts`, one part at a time."""
        if d_y_int8 is None:
            d_y_int8 = row_quant.quantize_rows(d_y, factors=self.scales)
        values = self._held_transposed
        if values is None:
            values = weight_quant.quantize_transposed(self._parts, self.scales)
        for part in d_y_int8.split(parts):
            yield product(part, QuantizedRows(values=values), dtype=d_y_int8.dtype)

    def _choose_outliers(self, x: Any) -> None:
        width = x.shape[1]
        count = min(MAX_OUTLIER_COLUMNS, width // MIN_WIDTH_PER_OUTLIER)
        numbers = x.detach().abs().amax(0).topk(count).indices.sort().values
        self.outlier_columns = row_quant.outlier_columns(numbers, width)
        height = sum(part.shape[0] for part in self._parts)
        whole = torch.empty((height, width), dtype=self._parts[0].dtype, device=x.device)
        nf4.dequantize_joined(self._parts, whole)
        self._outlier_weights = whole[:, numbers].to(x.dtype).contiguous()


def unsupported_reason(torch: Any, placement: Any, shapes: list[tuple[int, int]]) -> str | None:
    """Return the first reason why int8 products do not support this device or these shapes; None if they do."""
    if not placement.is_cuda:
        return "no GPU"
    capability = torch.cuda.get_device_capability(placement.device)
    if capability < MIN_CAPABILITY:
        return f"a GPU of compute capability {capability[0]}.{capability[1]}; 8.0 (A100, A10) or newer is needed"
    if not HAS_TRITON:
        return "triton is not installed"
    for height, width in shapes:
        if height % ROW_ALIGNMENT_BYTES or width % ROW_ALIGNMENT_BYTES:
            return f"a weight of {height} x {width}, not multiples of {ROW_ALIGNMENT_BYTES}"
    return None
