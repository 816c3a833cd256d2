"""The time of a training step by kind of kernel on this machine: `python -m bench profile`.

Steps run as in a trial, after the same warm-up; a few more are recorded by PyTorch's profiler. Kernels are sorted into
kinds by their names. The profiler slows the host and not the kernels, so times are the device's; idle is a step
measured without the profiler, less its kernels.

On a CPU there are no kernels: PyTorch's operators take their place.
"""

import json
import re
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from bench import stack
from bench.data.batches import Batch, load_tokenizer, make_batches, make_rows
from bench.data.trial_inputs import check_trial
from bench.qlora import recipes
from bench.qlora.step import TrainingStep, load_base, place
from bench.records import Trial

# The first pattern that matches a kernel's name decides.
KINDS = (
    ("attention", r"flash|fmha|attention|sdpa|cudnn"),
    ("products in 8 bits", r"_eight_product"),
    ("to 8 bits: activations", r"_eight_rows|_eight_swiglu"),
    ("NF4 dequantization", r"dequantize|_eight_weight"),
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
RECORDED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Share:
    """One kind of kernel in a step: milliseconds on the device, launches, and percent of the step."""

    kind: str
    milliseconds: float
    launches: float
    percent: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A step's `milliseconds`, measured without the profiler; its parts and its kernels, the longest first."""

    device: str
    recipe: str
    milliseconds: float
    shares: tuple[Share, ...]
    kernels: tuple[tuple[str, float], ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def kind_of(kernel: str) -> str:
    """The kind of a kernel or operator, by its name."""
    return next((kind for kind, words in KINDS if re.search(words, kernel, re.IGNORECASE)), OTHER)


def sort_kernels(found: Iterable[tuple[str, float, float]], step_ms: float) -> tuple[Share, ...]:
    """(name, milliseconds, launches) of a step's kernels summed by kind, the longest first; the rest is idle."""
    totals: dict[str, list[float]] = {}
    for name, milliseconds, launches in found:
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


def profile(trial: Trial) -> Profile:
    """Load, warm up, measure and record. Raises InputError, and whatever the stack raises."""
    _, _, conversations = check_trial(trial)
    modules = stack.load()
    torch, placement = modules.torch, place(modules)
    tokenizer = load_tokenizer(modules, trial.model)
    rows = make_rows(trial, conversations, tokenizer)
    base = load_base(modules, trial, placement)
    step = recipes.build(trial.recipe, modules, trial, placement, base)
    batches = make_batches(modules, trial, rows, tokenizer, pin_memory=placement.is_cuda)
    times = [_one(step, batches, trial) for _ in range(trial.warmup_steps + trial.measured_steps)][trial.warmup_steps :]
    activity = torch.profiler.ProfilerActivity
    again = make_batches(modules, trial, rows, tokenizer, pin_memory=placement.is_cuda)
    with torch.profiler.profile(activities=[activity.CUDA if placement.is_cuda else activity.CPU]) as recorded:
        for _ in range(RECORDED_STEPS):
            _one(step, again, trial)
    step_ms = 1e3 * statistics.median(times)
    found = sorted(_kernels(recorded, is_cuda=placement.is_cuda), key=lambda kernel: -kernel[1])
    return Profile(
        device=torch.cuda.get_device_name() if placement.is_cuda else "cpu",
        recipe=step.recipe,
        milliseconds=step_ms,
        shares=sort_kernels(found, step_ms),
        kernels=tuple((name[:100], round(milliseconds, 4)) for name, milliseconds, _ in found[:20]),
    )


def table(found: Profile, trial: Trial) -> str:
    """The profile as text."""
    lines = [
        f"{found.device}, recipe {found.recipe}, {trial.max_seq_len} x {trial.micro_batch_size}: "
        f"{found.milliseconds:.1f} ms a step",
        f"{'':28}{'ms':>9}{'share':>8}{'launches':>10}",
    ]
    lines += [
        f"{share.kind:28}{share.milliseconds:9.2f}{share.percent:7.1f}%{share.launches:10.0f}" for share in found.shares
    ]
    lines += ["", "the longest kernels, ms a step:"]
    return "\n".join([*lines, *(f"{milliseconds:9.2f}  {name}" for name, milliseconds in found.kernels)])


def _one(step: TrainingStep, batches: Iterator[Batch], trial: Trial) -> float:
    """One step's seconds."""
    step.wait()
    start = time.perf_counter()
    step(islice(batches, trial.gradient_accumulation_steps), trial.gradient_accumulation_steps)
    step.wait()
    return time.perf_counter() - start


def _kernels(recorded: Any, *, is_cuda: bool) -> Iterator[tuple[str, float, float]]:
    for event in recorded.key_averages():
        microseconds = event.self_device_time_total if is_cuda else event.self_cpu_time_total
        if microseconds > 0:
            yield event.key, microseconds / 1e3 / RECORDED_STEPS, event.count / RECORDED_STEPS
