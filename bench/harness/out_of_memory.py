"""The reason of a trial that ran out of memory: the failed allocation, the peak, and what to try next.

Standard library alone, and pure.

Not covered: whether the next configuration fits; it halves what memory grows with.
"""

import re
from typing import Any

from bench.records import Trial

LEAST_SEQ_LEN = 64  # nobody trains on shorter ones; the model itself is then too large for the device
STEPPED = ("training", "distributed")
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
# torch on CUDA: "Tried to allocate 2.00 GiB"; torch on the CPU: "you tried to allocate 8589934592 bytes".
_ASKED = re.compile(r"tried to allocate (\d+(?:\.\d+)?) (bytes|[KMGT]iB)", re.IGNORECASE)
# "GPU 0 has a total capacity of 23.68 GiB of which 1.20 GiB is free"; 2.1 spelled it "capacty".
_ROOM = re.compile(r"total capaci?ty of (\d[\d.]* [KMGT]iB) of which (\d[\d.]* (?:bytes|[KMGT]iB)) is free")
# Which rank of a distributed trial ran out.
_RANK = re.compile(r"rank \d+: ")


def explain(trial: Trial, phase: str, message: str, peak_bytes: int | None, kind: str = "VRAM") -> str:
    """One line: the allocation that failed, the peak reached before it, and the next configuration that should fit."""
    asked = asked_bytes(message)
    who = rank[0] if (rank := _RANK.match(message)) else ""
    quoted = message[:160] if asked is None else f"{who}{_size(asked)} more were asked for"
    parts = [f"out of memory: {quoted}"]
    if room := _ROOM.search(message):
        parts[0] += f" with {room[2]} of {room[1]} free"
    if peak_bytes is not None:
        parts.append(f"peak {kind} {_size(peak_bytes)}")
    changes = next_to_try(trial, phase)
    if changes is None:
        parts.append("nothing in the trial makes it smaller: it needs a device with more memory")
    else:
        parts.append("next to try: " + " ".join(f"{key}={str(value).lower()}" for key, value in changes.items()))
    return "; ".join(parts)


def asked_bytes(message: str) -> int | None:
    """The size of the allocation that failed, as an allocator's message names it; None where it does not."""
    found = _ASKED.search(message)
    if found is None:
        return None
    unit = next(shift for name, shift in _UNITS.items() if name.lower() == found[2].lower())
    return round(float(found[1]) * (1 << unit))


def next_to_try(trial: Trial, phase: str) -> dict[str, Any] | None:
    """The trial's fields to change, the least harmful first; None where no field helps.

    A smaller micro-batch with more of them per step computes the same; checkpointing costs a third of the speed, and
    shorter sequences cut the data. Weights that do not fit while they are loaded need another precision.
    """
    if trial.held_layers > 0:
        return {"held_layers": 0}  # costs a few per cent of the speed and nothing else
    if phase == "load" or trial.kind == "loading":
        return {"base_precision": "nf4"} if trial.base_precision == "bf16" else None
    if trial.kind == "hardware":
        return None
    if trial.micro_batch_size > 1:
        return _smaller_batch(trial)
    if trial.kind in STEPPED and not trial.gradient_checkpointing:
        return {"gradient_checkpointing": True}
    if trial.max_seq_len // 2 >= LEAST_SEQ_LEN:
        return {"max_seq_len": trial.max_seq_len // 2}
    return {"base_precision": "nf4"} if trial.base_precision == "bf16" else None


def _smaller_batch(trial: Trial) -> dict[str, Any]:
    batch = trial.micro_batch_size
    if trial.kind not in STEPPED:
        return {"micro_batch_size": batch // 2}
    parts = next(divisor for divisor in range(2, batch + 1) if batch % divisor == 0)
    accumulation = trial.gradient_accumulation_steps * parts
    changes = {"micro_batch_size": batch // parts}
    return changes | {"gradient_accumulation_steps": accumulation} if accumulation <= 4096 else changes


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
