"""Speed and memory of a training on every known chip, from the chips' published figures.

A step's time on a chip is FLOP over a share of the published matrix-product rate (`throughput.positions_per_sec`),
times `RATIOS`: what measured steps took of that, with Mistral 7B's shape at 4,096 positions. The pairs, in
tests/unit/bench/predict/measured_steps.yaml, are H200 and H100 for `fast` (n=5), and H200 and the published A10 for
`reference` (n=2). No pair exists for an A100, an L40S or for `stock`, which has the range of all.

A small model's steps take as long as their launches: no step is faster than `LAYER_SEC` for each layer and row.

Not covered: a power limit that holds one chip back more than another, communication between GPUs, host memory.
"""

import re
from collections.abc import Mapping
from typing import Any

from bench.architectures import find
from bench.data.trial_inputs import as_stock, unsupported_reason
from bench.machine import gpu_specs
from bench.predict import memory, throughput
from bench.predict.fit import OPEN_FIELDS, fastest_fit
from bench.records import Trial
from bench.records.forecast import ChipForecast

# Measured over predicted seconds: the smallest, the median and the largest of a recipe's pairs.
RATIOS = {"fast": (0.64, 0.72, 0.79), "reference": (0.47, 0.55, 0.62), "stock": (0.47, 0.67, 0.79)}
# Least seconds of a layer and row, forward and backward. SmolLM2-135M's shape took 0.42 to 0.45 ms in captured steps of
# 4,096 tokens on an H200 (`tests.benchmarks.train_hours`); the last is for steps that are not captured.
LAYER_SEC = (0.00035, 0.00043, 0.0014)


def forecast_chips(config: Mapping[str, Any], trial: Trial, gpu: str | None) -> list[ChipForecast]:
    """Predict a training on each chip with one name and on this GPU, its open fields as the chip's memory allows."""
    if trial.recipe == "fast" and unsupported_reason(config, trial, None) is not None:
        trial = as_stock(trial)
    positions = trial.micro_batch_size * trial.max_seq_len
    open_fields = set(OPEN_FIELDS) & set(trial.derive)
    layers, forecasts = find(config).geometry(config).layers, []
    for name, chip in _chips_by_name(gpu).items():
        if chip.bf16 is None:
            continue
        limit = memory.largest_peak(chip.memory_gb * 10**9)
        fitting = fastest_fit(config, trial, open_fields, limit) or trial
        rate = throughput.positions_per_sec(config, fitting) * chip.bf16 * throughput.ACHIEVABLE_SHARE
        ends = zip(RATIOS[trial.recipe], LAYER_SEC, strict=True)
        low, middle, high = (max(positions / rate * ratio, layers * layer_sec) for ratio, layer_sec in ends)
        fits = memory.peak_bytes(config, fitting) <= limit
        forecasts.append(ChipForecast(name=name, fits=fits, row_sec=middle, row_sec_low=low, row_sec_high=high))
    return forecasts


def _chips_by_name(gpu: str | None) -> dict[str, gpu_specs.GpuSpec]:
    """Return each chip whose entry stands for one name, and that of this GPU."""
    chips = {f"NVIDIA {chip.names}": chip for chip in gpu_specs.CHIPS if re.fullmatch(r"[\w -]+", chip.names)}
    own = gpu_specs.lookup(gpu)
    return chips if gpu is None or own is None else chips | {gpu: own}
