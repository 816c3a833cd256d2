"""The fastest configuration of a training that fits a GPU: row, recomputation, held layers, optimizer.

Memory is predicted by `bench.predict.memory`, the order by `bench.predict.throughput`. Only fields that the user left
open vary. None of them changes what is trained, except that the optimizer's state has 8 bits where the GPU has no room
for 32. The same model, settings and limit give the same configuration.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from bench.architectures import find
from bench.data.trial_inputs import as_stock, unsupported_reason
from bench.machine import nvml
from bench.predict import memory
from bench.predict.flops import ConfigReader
from bench.predict.throughput import positions_per_sec
from bench.records import Trial
from bench.records.training import DerivedSettings

ROW_TOKENS = 4096  # longer rows of a 7B model are at most 5 % faster (tests/benchmarks/grid_h200.jsonl)
RECOMPUTED_EVERY = (16, 8, 4, 2, 1)
OPTIMIZERS = ("adamw_torch", "paged_adamw_8bit")
# Share of a step that dequantizes the layers that are not held: 10 of 192 ms in bf16, 8 of 124 ms in 8 bits.
DEQUANTIZE_SHARE = 0.055
STEP_DOWN_BYTES = 1 << 30  # after a configuration did not fit, the next one needs at least that much less
# By field that a user can leave open, the fields of a Trial it stands for.
OPEN_FIELDS: dict[str, tuple[str, ...]] = {
    "micro_batch_size": ("micro_batch_size",),
    "gradient_checkpointing": ("gradient_checkpointing", "checkpoint_every", "offload_checkpoints"),
    "held_layers": ("held_layers",),
    "optimizer": ("optimizer",),
}


def fit_training(trial: Trial, read: ConfigReader, too_large: DerivedSettings | None = None) -> DerivedSettings:
    """Derive a trial's open fields from this machine's first GPU; nothing without one.

    `read` reads the config of its model. With `too_large`, a result whose training ran out of memory, return one that
    needs STEP_DOWN_BYTES less. Nothing is derived if nothing fits.
    """
    if not (open_fields := set(trial.derive) & set(OPEN_FIELDS)):
        return DerivedSettings()
    nvml.number_gpus_by_bus()
    gpu = next(iter(nvml.visible_gpus()), None)
    if gpu is None or (total := gpu.usable_memory_bytes) is None:
        return DerivedSettings()
    config, limit = read(trial), memory.largest_peak(total)
    built = as_stock(trial) if unsupported_reason(config, trial, gpu.compute_capability) else trial
    if too_large is not None:
        limit = min(limit, memory.peak_bytes(config, replace(built, **too_large.values)) - STEP_DOWN_BYTES)
    chosen = fastest_fit(config, built, open_fields, limit)
    if chosen is None:
        return DerivedSettings()
    names = [name for field in sorted(open_fields) for name in OPEN_FIELDS[field]]
    return DerivedSettings(**{name: getattr(chosen, name) for name in names})


def fastest_fit(config: Mapping[str, Any], trial: Trial, open_fields: Iterable[str], limit_bytes: int) -> Trial | None:
    """Return the trial with the fastest values of its open fields whose predicted peak is at most `limit_bytes`.

    Among equally fast ones the longest row. An optimizer with states in 8 bits only if with 32 nothing fits. None if
    nothing fits at all.
    """
    layers = find(config).geometry(config).layers

    def rate(candidate: Trial) -> float:
        dequantized = 1.0 - min(candidate.held_layers, layers) / layers
        return positions_per_sec(config, candidate) * (1.0 - DEQUANTIZE_SHARE * dequantized)

    for optimizer in OPTIMIZERS if "optimizer" in open_fields else (trial.optimizer,):
        fitting = [
            held
            for candidate in _candidates(replace(trial, optimizer=optimizer), frozenset(open_fields))
            if (held := _hold(config, candidate, limit_bytes, layers if "held_layers" in open_fields else None))
        ]
        if fitting:
            return max(fitting, key=rate)
    return None


def _candidates(trial: Trial, open_fields: frozenset[str]) -> Iterator[Trial]:
    """Iterate over the combinations of row and recomputation, the longest rows first."""
    is_fast = trial.recipe == "fast"
    rows: list[dict[str, Any]] = [{}]
    if "micro_batch_size" in open_fields:
        longest = max(1, ROW_TOKENS // trial.max_seq_len).bit_length()
        rows = [{"micro_batch_size": 1 << power} for power in reversed(range(longest))]
    recomputed: list[dict[str, Any]] = [{}]
    if "gradient_checkpointing" in open_fields:
        every = RECOMPUTED_EVERY if is_fast else RECOMPUTED_EVERY[-1:]
        recomputed = [
            {"gradient_checkpointing": False},
            *({"gradient_checkpointing": True, "checkpoint_every": number} for number in every),
            *([{"gradient_checkpointing": True, "offload_checkpoints": True}] if is_fast else []),
        ]
    for row, recompute in product(rows, recomputed):
        yield replace(trial, **row, **recompute)


def _hold(config: Mapping[str, Any], trial: Trial, limit_bytes: int, layers: int | None) -> Trial | None:
    """Return the trial with as many of its `layers` held as fit; None if it does not fit. None layers: hold no more."""
    trial = trial if layers is None else replace(trial, held_layers=0)
    peak = memory.peak_bytes(config, trial)
    if peak > limit_bytes:
        return None
    if layers is None or trial.recipe != "fast" or trial.base_precision != "nf4":
        return trial
    each = memory.peak_bytes(config, replace(trial, held_layers=1)) - peak
    return replace(trial, held_layers=min(layers, math.floor((limit_bytes - peak) / each)))
