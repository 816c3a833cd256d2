"""Checks before a trial: a GPU and other processes on it, then CUDA, bitsandbytes and Triton.

`check_gpus` takes milliseconds, before torch is imported; `check` comes right after. A trial that cannot run raises an
InputError of one line: it must not run on the CPU unnoticed. A condition that makes its numbers doubtful is a flag.
"""

import importlib.util
import os
import re
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.machine import nvml
from bench.records import Trial
from bench.records.units import format_mib
from bench.records.workloads import WORKLOADS
from bench.torch_stack import Stack

GPU_DEVICE_FILE = Path("/dev/nvidiactl")
BF16_MIN_CAPABILITY = (8, 0)
# More than an idle desktop or a daemon uses, less than any model.
MAX_IDLE_BYTES = 1 << 30
# After a trial has ended, the driver takes a moment to free 100 GB.
SETTLE_SEC = 10.0


def check_gpus(trial: Trial) -> tuple[dict[str, Any], list[str]]:
    """Check the trial's GPUs and their other users; returns facts and flags. Raises InputError."""
    nvml.number_gpus_by_bus()
    return inspect_gpus(require_gpus_for(trial.profile), trial)


def require_gpus_for(profile: str) -> list[nvml.Gpu]:
    """Return the GPUs that CUDA will see. Raises InputError if the profile needs one and none can be used."""
    gpus = nvml.visible_gpus()
    if profile != "gpu" or gpus:
        return gpus
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is not None and visible_devices.strip() in nvml.HIDE_ALL_VALUES:
        raise InputError(
            f"profile gpu needs a GPU, and CUDA_VISIBLE_DEVICES={visible_devices!r} hides all",
            remedy="unset it, or use profile tiny (bench.profile)",
        )
    if not nvml.has_device_file():  # a device file without the library is a GPU
        raise InputError(
            "profile gpu needs an NVIDIA GPU, and none is here (no /dev/nvidia0)",
            remedy="in a pod, request nvidia.com/gpu; on this machine, use profile tiny (bench.profile)",
        )
    return gpus


def inspect_gpus(
    gpus: Sequence[nvml.Gpu],
    trial: Trial,
    *,
    settle_sec: float = SETTLE_SEC,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, Any], list[str]]:
    """Collect facts and flags of the GPUs that the trial will use: the first visible ones."""
    if not gpus:
        return {}, []
    expected = trial.world_size
    settings = {f"gpu_{name}": value for name, value in gpus[0].settings().items()}
    facts: dict[str, Any] = {"gpus_visible": len(gpus), **settings}
    flags: list[str] = []
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
                f"GPU {gpu.index} is shared: {format_mib(held)} were in use before the trial, "
                "by processes that cannot be seen from here"
            )
    return facts, flags


def describe_process(pid: int, held: int | None) -> str:
    """Describe another process for a flag."""
    return f"another process (pid {pid}, {format_mib(held) if held else 'unknown memory'})"


def _wait_for_freed_memory(gpu: nvml.Gpu, settle_sec: float, sleep: Callable[[float], None]) -> int | None:
    """Return the memory in use once that of ended processes has been freed, or after `settle_sec`."""
    until = time.monotonic() + settle_sec
    while True:
        used = gpu.read().memory_used_bytes
        if used is None or used <= MAX_IDLE_BYTES or gpu.processes() or time.monotonic() >= until:
            return used
        sleep(0.25)


def check(stack: Stack, trial: Trial) -> None:
    """Check the stack for this trial. Raises InputError."""
    if stack.torch.cuda.is_available():
        _check_bf16(stack.torch, trial)
        _check_bitsandbytes(stack, trial)
        _check_compiler(trial)
    elif GPU_DEVICE_FILE.exists() and os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in nvml.HIDE_ALL_VALUES:
        reason = _cuda_error(stack.torch)
        raise InputError(
            f"{GPU_DEVICE_FILE}: a GPU is here, but torch {stack.torch.__version__} cannot use it: {reason}",
            remedy=f"{remedy_for(reason, stack.torch.version.cuda)}; or set CUDA_VISIBLE_DEVICES= to run on the CPU",
        )
    elif _needs_bitsandbytes(trial) and not stack.bitsandbytes_runs_on_cpu:
        raise InputError(
            f"bitsandbytes {stack.bitsandbytes.__version__} needs CUDA, which is not available here",
            remedy="install 0.46 or newer, or set base_precision=bf16 and optimizer=adamw_torch",
        )


def remedy_for(reason: str, cuda: str | None) -> str:
    """Return the remedy for CUDA's message. `cuda` is the version that torch was built for, None for a CPU build."""
    if cuda is None or "not compiled with CUDA" in reason:
        return "install torch's CUDA build, as in the image's lock"
    if "driver" in reason and "too old" in reason:
        return f"install a driver made for CUDA {cuda}, or an image whose torch is built for an older CUDA"
    if "no NVIDIA driver" in reason:
        return "the driver's libraries are missing here: run the container with the NVIDIA runtime"
    if "No CUDA GPUs" in reason:
        return "this process has no GPU: request one (nvidia.com/gpu: 1), or check CUDA_VISIBLE_DEVICES"
    return "run nvidia-smi on the same machine; a driver that was updated while loaded needs a reboot"


def _cuda_error(torch: Any) -> str:
    """Return CUDA's error in one line: is_available() does not report it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except Exception as error:  # noqa: BLE001 - RuntimeError, AssertionError or the driver's own class
        return " ".join(str(error).split())[:240] or type(error).__name__
    return "CUDA reports no device"


def _needs_bitsandbytes(trial: Trial) -> bool:
    needs = trial.workload.needs
    return ("model" in needs and trial.base_precision == "nf4") or (
        "optimizer" in needs and trial.optimizer == "paged_adamw_8bit"
    )


def _has_kernels(trial: Trial) -> bool:
    return "recipe" in trial.workload.needs and trial.recipe != "reference"


def _check_bf16(torch: Any, trial: Trial) -> None:
    # Older chips emulate bf16 by float32: torch raises no error, and the numbers are meaningless.
    capability = torch.cuda.get_device_capability()
    if capability < BF16_MIN_CAPABILITY and "model" in trial.workload.needs:
        raise InputError(
            f"{torch.cuda.get_device_name()}: compute capability {capability[0]}.{capability[1]} has no bf16, which "
            "trials need",
            remedy=f"use a GPU of {BF16_MIN_CAPABILITY[0]}.{BF16_MIN_CAPABILITY[1]} or newer (A10, A100), "
            f"or kind {' or '.join(name for name, workload in WORKLOADS.items() if 'model' not in workload.needs)}",
        )


def _check_bitsandbytes(stack: Stack, trial: Trial) -> None:
    library = stack.bitsandbytes.cextension.lib
    if not _needs_bitsandbytes(trial) or getattr(type(library), "compiled_with_cuda", False):
        return
    folder = Path(str(stack.bitsandbytes.__file__)).parent
    builds = sorted(match[1] for path in folder.iterdir() if (match := re.search(r"_cuda(\d+)\.so$", path.name)))
    available = f"it has builds for CUDA {', '.join(builds)}" if builds else "it has no CUDA build"
    raise InputError(
        f"bitsandbytes {stack.bitsandbytes.__version__} has no GPU support for CUDA {stack.torch.version.cuda} here: "
        f"{available}",
        remedy="install the wheel that the image's lock names (0.41.3 and CPU-only builds have none), "
        "or set BNB_CUDA_VERSION to one of its builds; `python -m bitsandbytes` has details",
    )


def _check_compiler(trial: Trial) -> None:
    """Check for a C compiler and Python's headers: Triton builds kernel launchers with them at the first launch."""
    if not _has_kernels(trial) or importlib.util.find_spec("triton") is None:
        return
    remedy = "apt-get install g++ python3-dev, or use the image of `inv build`"
    compiler = os.environ.get("CC")
    if not any(map(shutil.which, (compiler,) if compiler else ("gcc", "clang"))):
        reason = f"CC={compiler}: no such program" if compiler else "neither gcc nor clang is on PATH"
        raise InputError(f"{reason}: Triton builds the launchers of its kernels with a C compiler", remedy=remedy)
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian's own, as Triton does
    header = Path(sysconfig.get_path("include", scheme), "Python.h")
    if not header.exists():
        raise InputError(f"{header}: missing, and Triton builds the launchers of its kernels with it", remedy=remedy)
