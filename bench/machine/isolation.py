"""Checks for a GPU and for other processes on it, in milliseconds, before torch is imported.

A trial that cannot run raises an InputError of one line; a condition that makes its numbers doubtful is a flag.

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

# More than an idle desktop or a daemon uses, less than any model.
MAX_IDLE_BYTES = 1 << 30
# After a trial has ended, the driver takes a moment to free 100 GB.
SETTLE_SEC = 10.0


@dataclass(frozen=True, kw_only=True)
class GpuNeighbours:
    """Facts about the GPUs for the fingerprint, and flags about other processes."""

    facts: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


def check_gpus(trial: Trial, *, strict: bool) -> GpuNeighbours:
    """Check the trial's GPUs and their other users. Raises InputError, with `strict` also for a flag."""
    nvml.number_gpus_by_bus()
    neighbours = inspect_gpus(require_gpus_for(trial.profile), trial)
    if strict and neighbours.flags:
        raise InputError(f"refused by --strict, before it began: {neighbours.flags[0]}")
    return neighbours


def require_gpus_for(profile: str) -> list[nvml.Gpu]:
    """Return the GPUs that CUDA will see. Raises InputError if the profile needs one and none can be used."""
    gpus = nvml.visible_gpus()
    if profile == "gpu":
        require_visible_gpu(
            gpus, has_device_file=nvml.has_device_file(), visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES")
        )
    return gpus


def require_visible_gpu(gpus: Sequence[nvml.Gpu], *, has_device_file: bool, visible_devices: str | None) -> None:
    """Raise InputError if no GPU can be used. `has_device_file`: a device file exists, even without the library."""
    if gpus:
        return
    if visible_devices is not None and visible_devices.strip() in nvml.HIDE_ALL_VALUES:
        raise InputError(
            f"profile gpu needs a GPU, and CUDA_VISIBLE_DEVICES={visible_devices!r} hides all",
            remedy="unset it, or use profile tiny (bench.profile)",
        )
    if not has_device_file:
        raise InputError(
            "profile gpu needs an NVIDIA GPU, and none is here (no /dev/nvidia0)",
            remedy="in a pod, request nvidia.com/gpu; on this machine, use profile tiny (bench.profile)",
        )


def inspect_gpus(
    gpus: Sequence[nvml.Gpu],
    trial: Trial,
    *,
    settle_sec: float = SETTLE_SEC,
    sleep: Callable[[float], None] = time.sleep,
) -> GpuNeighbours:
    """Collect facts and flags of the GPUs that the trial will use: the first visible ones."""
    if not gpus:
        return GpuNeighbours()
    expected = trial.world_size
    facts: dict[str, Any] = {"gpus_visible": len(gpus), **gpus[0].facts()}
    flags = []
    if len(gpus) > expected and not trial.workload.measures_scaling and trial.profile == "gpu":
        flags.append(f"{len(gpus)} GPUs are visible where {expected} is expected; set CUDA_VISIBLE_DEVICES=0")
    used = [_wait_for_freed_memory(gpu, settle_sec, sleep) for gpu in gpus[:expected]]
    facts["gpu_memory_used_at_start_bytes"] = used[0]
    for gpu, held in zip(gpus, used, strict=False):
        others = gpu.processes() or {}
        flags += [
            f"GPU {gpu.index} is shared: {describe_process(pid, size)} was on it before" for pid, size in others.items()
        ]
        if not others and held is not None and held > MAX_IDLE_BYTES:
            flags.append(
                f"GPU {gpu.index} is shared: {held // nvml.MIB:,} MiB were in use before the trial, "
                "by processes that cannot be seen from here"
            )
    return GpuNeighbours(facts=facts, flags=flags)


def describe_process(pid: int, held: int | None) -> str:
    """Describe another process for a flag."""
    return f"another process (pid {pid}, {f'{held // nvml.MIB:,}' if held else 'unknown'} MiB)"


def _wait_for_freed_memory(gpu: nvml.Gpu, settle_sec: float, sleep: Callable[[float], None]) -> int | None:
    """Return the memory in use once that of ended processes has been freed, or after `settle_sec`."""
    until = time.monotonic() + settle_sec
    while True:
        used = gpu.read().memory_used_bytes
        if used is None or used <= MAX_IDLE_BYTES or gpu.processes() or time.monotonic() >= until:
            return used
        sleep(0.25)
