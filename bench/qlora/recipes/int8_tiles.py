"""Tiles of the INT8 products, found on the GPU that runs them and kept in a file.

At the first build of a step, each product's candidates (`bench.kernels.int8.matmul.candidates`) are timed for about a
second in all, before anything is captured. The file is in the user's cache, one for each GPU and software. It names
candidates and contains no sizes, so a damaged or foreign file selects one of our own tiles or nothing. The choice
changes no bit of a result (`tests/gpu/test_int8.py`).

QLORA_FLEET_TILES=default uses the default tiles. Several ranks measure nothing: they use the file, or the default.
"""

import hashlib
import json
import os
import stat
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.kernels.int8 import matmul
from bench.kernels.int8.row_quant import QuantizedRows
from bench.kernels.triton_compat import gpu_properties, triton
from bench.records.atomic_files import read_regular, write_atomic

VARIABLE, CHOICES = "QLORA_FLEET_TILES", ("auto", "default")
ROUNDS, CALLS = 5, 2
MIN_GAIN = 0.01  # a candidate that gains less than this share of the time does not replace the default
MAX_FILE_BYTES = 1 << 16
OUTLIER_COLUMNS = 32

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
    path = file_for(_fingerprint(torch, device) | {"tokens": tokens})
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


def file_for(fingerprint: Mapping[str, Any]) -> Path:
    """Return the file of this GPU and software in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()
    return cache / "qlora-fleet" / "int8-tiles" / f"{digest[:32]}.json"


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
            outliers = torch.zeros((tokens, OUTLIER_COLUMNS), dtype=torch.bfloat16, device=device)
            weights = torch.zeros((rows, OUTLIER_COLUMNS), dtype=torch.bfloat16, device=device)
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
