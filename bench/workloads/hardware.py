"""The hardware trial: ceilings of matrix products and copies, for comparison with other numbers.

Products and copies run on random numbers, after a warm-up, in samples of at least 2 ms timed by the device (CUDA
events; the CPU's clock without a GPU), over operands larger than any cache. With zeros a chip draws half its power and
clocks higher. A type that chip or stack do not support gives a measurement without a value and with a note, no error.

Not covered: disks (the trial `loading` reads the model's files); links between GPUs; types that no training multiplies
in; arithmetic outside matrix products; products under 20 us (size 2048 in 8 bits on a Hopper), which measure the kernel
launch rate.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.data.inputs import Inputs
from bench.harness.record import Record
from bench.harness.termination import StopSignals, is_out_of_memory
from bench.machine import gpu_specs
from bench.qlora.step import TorchSession, open_session
from bench.records.bootstrap import Interval, summarize
from bench.torch_stack import DeviceClock

WIDTHS = {"fp32": 4, "bf16": 2, "int8": 1}  # bytes of the types that a training multiplies in
# The lowest compute capability with hardware matrix products of the type.
MIN_CAPABILITY = {"bf16": (8, 0), "int8": (7, 5)}
OPERAND_BYTES = 256 << 20  # more than the largest cache of a GPU in gpu_specs.json (H200: 50 MiB, RTX 4090: 72)
SAMPLE_SEC = 2e-3
WARMUP_CALLS = 3
MIN_SAMPLES, MAX_SAMPLES = 5, 50


@dataclass(frozen=True, kw_only=True)
class HardwareScale:
    """Sizes of a profile's products and copies; the samples of one measurement may take `budget_sec`."""

    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    copied_bytes: int
    operand_bytes: int
    budget_sec: float


FULL = HardwareScale(
    dtypes=("bf16", "int8"),
    sizes=(2048, 4096, 8192),
    copied_bytes=1 << 30,
    operand_bytes=OPERAND_BYTES,
    budget_sec=0.5,
)
TINY = HardwareScale(
    dtypes=("fp32", "bf16"),
    sizes=(256, 512),
    copied_bytes=64 << 20,
    operand_bytes=8 << 20,
    budget_sec=0.1,
)


class Unsupported(Exception):
    """Error for a type that this chip or stack does not support; the message names what is missing."""


def measure(record: Record, _inputs: Inputs, stops: StopSignals) -> None:
    """Add matmul_tflops and the three copy bandwidths to the record."""
    scale = TINY if record.trial.profile == "tiny" else FULL
    record.steps_planned = len(scale.dtypes) * len(scale.sizes) + 3
    session = open_session(record, stops)
    chip = gpu_specs.lookup(record.fingerprint["gpu_name"])
    record.log(f"published figures for comparison: {'unknown for this chip' if chip is None else chip.source}")
    with record.timed("measure"):
        for dtype, size in itertools.product(scale.dtypes, scale.sizes):
            _add_matmul(record, session, chip, dtype, size, scale)
            stops.check()
        add_copies(record, session, chip, scale, stops)


def matmul_tflops(
    session: TorchSession, dtype: str, size: int, *, budget_sec: float, operand_bytes: int = OPERAND_BYTES
) -> Interval:
    """Measure TFLOP/s of size x size products of `dtype` (one of WIDTHS): 2 size^3 FLOP over each sample's time.

    Raises Unsupported, and torch's errors when memory is short.
    """
    torch = session.modules.torch
    _check_supported(session, dtype)
    with torch.no_grad():
        multiply = _product(session, dtype, size, operand_bytes)
        try:
            seconds = sample_sec(session, multiply, budget_sec)
        except RuntimeError as error:
            # torch's int8 product is a private function that raises RuntimeError if there is no kernel.
            if dtype != "int8" or is_out_of_memory(error):
                raise
            raise Unsupported(f"torch {torch.__version__}: {str(error).splitlines()[0][:160]}") from error
    return summarize([2.0 * size**3 / second / 1e12 for second in seconds])


def sample_sec(session: TorchSession, call: Callable[[], object], budget_sec: float) -> list[float]:
    """Measure the seconds of one `call`, MIN_SAMPLES to MAX_SAMPLES times within the budget, after a warm-up.

    A sample consists of as many calls as take 2 ms, so that the device always has queued work and the clock's
    resolution suffices.
    """
    _timed_sec(session, call, 1)  # the first call also chooses and loads kernels
    estimate = _timed_sec(session, call, WARMUP_CALLS) / WARMUP_CALLS
    calls = max(1, math.ceil(SAMPLE_SEC / estimate))
    samples = min(MAX_SAMPLES, max(MIN_SAMPLES, int(budget_sec / (calls * estimate))))
    return [_timed_sec(session, call, calls) / calls for _ in range(samples)]


def _timed_sec(session: TorchSession, call: Callable[[], object], calls: int) -> float:
    """Measure the seconds of `calls` calls."""
    clock = DeviceClock(session.modules.torch, is_cuda=session.placement.is_cuda)
    start = clock.stamp()
    for _ in range(calls):
        call()
    return clock.seconds(start, clock.stamp())


def _check_supported(session: TorchSession, dtype: str) -> None:
    """Raise Unsupported if the chip excludes the type."""
    if not session.placement.is_cuda:
        if dtype == "int8":
            raise Unsupported("measured on GPUs only")
        return
    capability = session.modules.torch.cuda.get_device_capability(session.placement.device)
    minimum = MIN_CAPABILITY.get(dtype, (0, 0))
    if capability < minimum:
        raise Unsupported(
            f"compute capability {capability[0]}.{capability[1]} does not support {dtype}, which needs "
            f"{minimum[0]}.{minimum[1]}"
        )


def _product(session: TorchSession, dtype: str, size: int, operand_bytes: int) -> Callable[[], object]:
    """Return a function that multiplies the next pair of operands; pairs rotate to defeat caches."""
    torch = session.modules.torch
    count = max(1, math.ceil(operand_bytes / (2 * WIDTHS[dtype] * size * size)))
    pairs = itertools.cycle([(_random(session, dtype, size), _random(session, dtype, size)) for _ in range(count)])

    def multiply() -> object:
        a, b = next(pairs)
        # The tensor cores' int8 kernels take the second operand column-major, hence its transpose.
        return torch._int_mm(a, b.t()) if dtype == "int8" else a @ b

    return multiply


def _random(session: TorchSession, dtype: str, size: int) -> Any:
    torch, device = session.modules.torch, session.placement.device
    if dtype == "int8":
        return torch.randint(-128, 128, (size, size), dtype=torch.int8, device=device)
    return torch.randn(size, size, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, device=device)


def _add_matmul(
    record: Record, session: TorchSession, chip: gpu_specs.GpuSpec | None, dtype: str, size: int, scale: HardwareScale
) -> None:
    try:
        tflops = matmul_tflops(session, dtype, size, budget_sec=scale.budget_sec, operand_bytes=scale.operand_bytes)
    except Unsupported as error:
        record.add("matmul_tflops", None, note=str(error), dtype=dtype, size=size)
        return
    share = gpu_specs.share_percent(tflops.median, None if chip is None else chip.matmul_tflops(dtype))
    record.add("matmul_tflops", tflops, share_percent=share, dtype=dtype, size=size)


def add_copies(
    record: Record,
    session: TorchSession,
    chip: gpu_specs.GpuSpec | None,
    scale: HardwareScale,
    stops: StopSignals,
) -> None:
    """Add copy rates within the device's memory and between it and pinned host memory, one direction at a time."""
    torch, device = session.modules.torch, session.placement.device
    count = scale.copied_bytes
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # A copy reads and writes every byte; the published memory bandwidth counts both.
    rate = summarize(
        [2 * count / second / 1e9 for second in sample_sec(session, lambda: target.copy_(source), scale.budget_sec)]
    )
    share = gpu_specs.share_percent(rate.median, None if chip is None else chip.memory_gb_per_sec)
    record.add("device_copy_gb_per_sec", rate, share_percent=share, bytes=count)
    stops.check()
    if not session.placement.is_cuda:
        for name in ("host_to_device_gb_per_sec", "device_to_host_gb_per_sec"):
            record.add(name, None, note="no GPU to copy to")
        return
    host = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    host.copy_(source)

    directions = (("host_to_device_gb_per_sec", target, host), ("device_to_host_gb_per_sec", host, target))
    for name, destination, origin in directions:
        copy = partial(destination.copy_, origin, non_blocking=True)
        rates = [count / second / 1e9 for second in sample_sec(session, copy, scale.budget_sec)]
        record.add(name, summarize(rates), bytes=count, pinned=True)
        stops.check()
