"""Checks for a GPU and for other processes on it, in milliseconds, before torch is imported.

A trial that cannot run is an InputError of one line; a condition that makes its numbers doubtful is a flag.

Not covered: whether torch and bitsandbytes can use the GPU (`bench.machine.preflight`).
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.data.inputs import InputError
from bench.machine import nvml
from bench.records import Trial

# More than an idle desktop or a daemon holds, less than any model.
OTHERS_MAY_HOLD_BYTES = 1 << 30
# After the previous trial has ended, the driver takes a moment to free 100 GB.
SETTLE_SEC = 10.0


@dataclass(frozen=True, kw_only=True)
class GpuNeighbours:
    """Facts for the fingerprint, and flags."""

    facts: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


def look_around(trial: Trial, *, strict: bool) -> GpuNeighbours:
    """Check the trial's GPUs and what else uses them. Raises InputError; with `strict` for flags too."""
    nvml.order_like_the_library()
    found = examine(require_gpu_of(trial.profile), trial)
    if strict and found.flags:
        raise InputError(f"refused by --strict, before it began: {found.flags[0]}")
    return found


def require_gpu_of(profile: str) -> list[nvml.Gpu]:
    """The GPUs that CUDA will see. Raises InputError where the profile needs one and none can be used."""
    gpus = nvml.gpus_here()
    if profile == "gpu":
        require_gpu(gpus, is_there=nvml.driver_is_there(), chosen=os.environ.get("CUDA_VISIBLE_DEVICES"))
    return gpus


def require_gpu(gpus: Sequence[nvml.Gpu], *, is_there: bool, chosen: str | None) -> None:
    """Raises InputError where no GPU can be used. `is_there`: a device file shows one, also without the library."""
    if gpus:
        return
    if chosen is not None and chosen.strip() in nvml.HIDING_ALL:
        raise InputError(
            f"profile gpu needs a GPU, and CUDA_VISIBLE_DEVICES={chosen!r} hides all; unset it, or use profile tiny "
            "(bench.profile)"
        )
    if not is_there:
        raise InputError(
            "profile gpu needs an NVIDIA GPU, and none is here (no /dev/nvidia0); in a pod, request nvidia.com/gpu; "
            "on this machine, use profile tiny (bench.profile)"
        )


def examine(
    gpus: Sequence[nvml.Gpu],
    trial: Trial,
    *,
    settle_sec: float = SETTLE_SEC,
    sleep: Callable[[float], None] = time.sleep,
) -> GpuNeighbours:
    """Facts and flags of the GPUs that the trial will use: the first of those visible."""
    if not gpus:
        return GpuNeighbours()
    expected = trial.world_size
    facts: dict[str, Any] = {"gpus_visible": len(gpus), **gpus[0].facts()}
    flags = []
    if len(gpus) > expected and trial.kind != "distributed" and trial.profile == "gpu":
        flags.append(f"{len(gpus)} GPUs are visible where {expected} is expected; set CUDA_VISIBLE_DEVICES=0")
    used = [_settled(gpu, settle_sec, sleep) for gpu in gpus[:expected]]
    facts["gpu_memory_used_at_start_bytes"] = used[0]
    for gpu, held in zip(gpus, used, strict=False):
        others = gpu.processes() or {}
        flags += [f"GPU {gpu.index} is shared: {describe(pid, size)} was on it before" for pid, size in others.items()]
        if not others and held is not None and held > OTHERS_MAY_HOLD_BYTES:
            flags.append(
                f"GPU {gpu.index} is shared: {held // nvml.MIB:,} MiB were in use before the trial, "
                "by processes that cannot be seen from here"
            )
    return GpuNeighbours(facts=facts, flags=flags)


def describe(pid: int, held: int | None) -> str:
    """Another process in words."""
    return f"another process (pid {pid}, {f'{held // nvml.MIB:,}' if held else 'unknown'} MiB)"


def _settled(gpu: nvml.Gpu, settle_sec: float, sleep: Callable[[float], None]) -> int | None:
    """Memory in use, after memory of ended processes has been freed."""
    until = time.monotonic() + settle_sec
    while True:
        used = gpu.read().memory_used_bytes
        if used is None or used <= OTHERS_MAY_HOLD_BYTES or gpu.processes() or time.monotonic() >= until:
            return used
        sleep(0.25)
