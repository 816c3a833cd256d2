"""Time of a step by kind of kernel on this machine: `python -m bench profile`.

Training steps run as in a trial, after the same warm-up; a few more are recorded by PyTorch's profiler. Kernels are
sorted into kinds by their names. The profiler slows the host and not the kernels, so times are the device's; idle time
is a step measured without the profiler, less its kernels.

On a CPU, PyTorch's operators are reported instead of kernels.
"""

import json
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bench import torch_stack
from bench.data.trial_inputs import check_trial
from bench.machine.preflight import require_gpus_for
from bench.qlora.step import TorchSession, choose_placement
from bench.records import Trial
from bench.workloads import RECORDED_STEPS, load

# The first pattern that matches a kernel's name decides.
KERNEL_KINDS = (
    ("attention", r"flash|fmha|attention|sdpa|cudnn"),
    ("products in 8 bits", r"_int8_matmul"),
    ("to 8 bits: activations", r"_int8_quantize_rows|_int8_swiglu"),
    ("NF4 dequantization", r"dequantize|_int8_weight"),
    ("LoRA, the small products", r"_lora_"),
    ("norm, rope, activation", r"_rms_norm|_rope_|_swiglu|liger"),
    ("cross entropy", r"cross_entropy|softmax|nll_loss"),
    ("optimizer", r"adam|optimizer|multi_tensor|foreach"),
    ("dropout", r"dropout|philox|bernoulli"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|xmma|cublas|matmul|splitk|\bmm\b|addmm|\bbmm\b"),
    ("copies", r"memcpy|memset"),
    (
        "elementwise and casts",
        r"elementwise|vectorized|reduce|triton_|unrolled|catarray|index|copy|fill|mul|add|to_copy",
    ),
)
OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Share:
    """One kind of kernel in a step: milliseconds on the device, launches, and percent of the step."""

    kind: str
    milliseconds: float
    launches: float
    percent: float


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Profile of a step: `milliseconds` without the profiler, its kinds and its kernels, the longest first.

    `recipe` names the code path that computed it.
    """

    device: str
    recipe: str
    milliseconds: float
    shares: tuple[Share, ...]
    kernels: tuple[tuple[str, float], ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def kind_of(kernel: str) -> str:
    """Look up the kind of a kernel or operator by its name."""
    return next((kind for kind, pattern in KERNEL_KINDS if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def sum_by_kind(kernels: Iterable[tuple[str, float, float]], step_ms: float) -> tuple[Share, ...]:
    """Sum (name, milliseconds, launches) of a step's kernels by kind, the longest first; the rest is idle."""
    totals: dict[str, list[float]] = {}
    for name, milliseconds, launches in kernels:
        total = totals.setdefault(kind_of(name), [0.0, 0.0])
        total[0] += milliseconds
        total[1] += launches
    busy = sum(total[0] for total in totals.values())
    if busy < step_ms:
        totals["idle"] = [step_ms - busy, 0.0]
    whole = max(step_ms, busy)
    shares = (
        Share(kind=kind, milliseconds=ms, launches=count, percent=100 * ms / whole if whole else 0.0)
        for kind, (ms, count) in totals.items()
    )
    return tuple(sorted(shares, key=lambda share: -share.milliseconds))


def profile(trial: Trial) -> StepProfile:
    """Load, warm up, measure and record. Raises InputError and any error of the torch stack."""
    require_gpus_for(trial.profile)
    inputs = check_trial(trial)
    modules = torch_stack.load()
    session = TorchSession(modules=modules, placement=choose_placement(modules))
    torch, is_cuda = modules.torch, session.placement.is_cuda
    steps = load(trial.workload).profiled_steps(session, trial, inputs)
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if is_cuda else activity.CPU]) as recorded:
        steps.run_more()
    step_ms = 1e3 * statistics.median(steps.seconds)
    kernels = sorted(_kernel_times(recorded, is_cuda=is_cuda), key=lambda kernel: -kernel[1])
    return StepProfile(
        device=torch.cuda.get_device_name() if is_cuda else "cpu",
        recipe=steps.recipe,
        milliseconds=step_ms,
        shares=sum_by_kind(kernels, step_ms),
        kernels=tuple((name[:100], round(milliseconds, 4)) for name, milliseconds, _ in kernels[:20]),
    )


def format_profile(step_profile: StepProfile, trial: Trial) -> str:
    """Format the profile as text."""
    lines = [
        f"{step_profile.device}, recipe {step_profile.recipe}, {trial.max_seq_len} x {trial.micro_batch_size}: "
        f"{step_profile.milliseconds:.1f} ms a step",
        f"{'':28}{'ms':>9}{'share':>8}{'launches':>10}",
    ]
    lines += [
        f"{share.kind:28}{share.milliseconds:9.2f}{share.percent:7.1f}%{share.launches:10.0f}"
        for share in step_profile.shares
    ]
    lines += ["", "the longest kernels, ms a step:"]
    return "\n".join([*lines, *(f"{milliseconds:9.2f}  {name}" for name, milliseconds in step_profile.kernels)])


def _kernel_times(recorded: Any, *, is_cuda: bool) -> Iterator[tuple[str, float, float]]:
    for event in recorded.key_averages():
        microseconds = event.self_device_time_total if is_cuda else event.self_cpu_time_total
        if microseconds > 0:
            yield event.key, microseconds / 1e3 / RECORDED_STEPS, event.count / RECORDED_STEPS
