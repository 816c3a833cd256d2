"""Reason and remedy for a trial that ran out of memory: the failed allocation, the peak, what to try next.

Only the standard library; pure.

Not covered: whether the next configuration fits. It halves a size that memory depends on.
"""

import re
from collections.abc import Callable
from typing import Any

from bench.records import Trial

MIN_SEQ_LEN = 64  # shorter sequences are useless; the model itself is then too large for the device
MAX_ACCUMULATION = 4096  # the largest that a trial may have
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
# torch on CUDA: "Tried to allocate 2.00 GiB"; torch on the CPU: "you tried to allocate 8589934592 bytes".
_REQUESTED = re.compile(r"tried to allocate (\d+(?:\.\d+)?) (bytes|[KMGT]iB)", re.IGNORECASE)
# "GPU 0 has a total capacity of 23.68 GiB of which 1.20 GiB is free"; torch 2.1 spelled it "capacty".
_FREE = re.compile(r"total capaci?ty of (\d[\d.]* [KMGT]iB) of which (\d[\d.]* (?:bytes|[KMGT]iB)) is free")
# The rank of a distributed trial that ran out of memory.
_RANK = re.compile(r"rank \d+: ")


def explain(trial: Trial, phase: str, message: str, peak_bytes: int | None, kind: str = "VRAM") -> tuple[str, str]:
    """Return (the failed allocation and the peak before it, the next configuration to try), one line each."""
    requested = requested_bytes(message)
    prefix = rank[0] if (rank := _RANK.match(message)) else ""
    allocation = message[:160] if requested is None else f"{prefix}{_size(requested)} more were requested"
    parts = [f"out of memory: {allocation}"]
    if free := _FREE.search(message):
        parts[0] += f" with {free[2]} of {free[1]} free"
    if peak_bytes is not None:
        parts.append(f"peak {kind} {_size(peak_bytes)}")
    changes = suggest_changes(trial, phase)
    if changes is None:
        return "; ".join(parts), "no field of the trial reduces it: use a device with more memory"
    return "; ".join(parts), "next to try: " + " ".join(f"{key}={str(value).lower()}" for key, value in changes.items())


def requested_bytes(message: str) -> int | None:
    """Parse the size of the failed allocation from an allocator's message; None if the message has no size."""
    match = _REQUESTED.search(message)
    if match is None:
        return None
    unit = next(shift for name, shift in _UNITS.items() if name.lower() == match[2].lower())
    return round(float(match[1]) * (1 << unit))


def suggest_changes(trial: Trial, phase: str) -> dict[str, Any] | None:
    """Choose the trial's fields to change, the first of its workload's that can be reduced; None if no field helps.

    A smaller micro-batch with more of them per step gives the same result. Checkpointing costs a third of the speed.
    Shorter sequences cut the data. Weights that do not fit while they are loaded need another precision.
    """
    for name in trial.workload.memory_fields:
        if (phase != "load" or name in _WEIGHT_FIELDS) and (changes := _CHANGES[name](trial)):
            return changes
    return None


def _smaller_batch(trial: Trial) -> dict[str, Any]:
    batch = trial.micro_batch_size
    if batch == 1:
        return {}
    if not trial.workload.has_steps:
        return {"micro_batch_size": batch // 2}
    parts = next(divisor for divisor in range(2, batch + 1) if batch % divisor == 0)
    accumulation = trial.gradient_accumulation_steps * parts
    changes = {"micro_batch_size": batch // parts}
    return changes | {"gradient_accumulation_steps": accumulation} if accumulation <= MAX_ACCUMULATION else changes


_WEIGHT_FIELDS = ("held_layers", "base_precision")  # fields that reduce the memory of loading
# Map a field of a trial to the changes that reduce its memory; none if it cannot be reduced.
_CHANGES: dict[str, Callable[[Trial], dict[str, Any]]] = {
    # costs a few per cent of the speed and nothing else
    "held_layers": lambda trial: {"held_layers": 0} if trial.held_layers > 0 else {},
    "micro_batch_size": _smaller_batch,
    "gradient_checkpointing": lambda trial: {} if trial.gradient_checkpointing else {"gradient_checkpointing": True},
    "max_seq_len": lambda trial: (
        {"max_seq_len": trial.max_seq_len // 2} if trial.max_seq_len // 2 >= MIN_SEQ_LEN else {}
    ),
    "base_precision": lambda trial: {"base_precision": "nf4"} if trial.base_precision == "bf16" else {},
}


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
