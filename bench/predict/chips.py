"""Speed and memory of a training on every known chip, from the chips' published figures.

A step's time on a chip is FLOP over a share of the published matrix-product rate (`throughput.positions_per_sec`),
times `RATIOS`: what measured steps took of that, with Mistral 7B's shape at 4,096 positions. The pairs, in
tests/unit/bench/predict/measured_steps.yaml, are H200 and H100 for `fast` (n=5), and H200 and the published A10 for
`reference` (n=2). No pair exists for an A100, an L40S or for `stock`, which has the range of all.

Not covered: a power limit that holds one chip back more than another, communication between GPUs, host memory.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.architectures.architecture import ConfigError
from bench.data.model_folder import read_config
from bench.data.trial_inputs import as_stock, unsupported_reason
from bench.machine import gpu_specs
from bench.predict import memory, throughput
from bench.predict.fit import OPEN_FIELDS, fastest_fit
from bench.records import Trial
from bench.records.forecast import ChipForecast

# Measured over predicted seconds: the smallest, the median and the largest of a recipe's pairs.
RATIOS = {"fast": (0.64, 0.72, 0.79), "reference": (0.47, 0.55, 0.62), "stock": (0.47, 0.67, 0.79)}


def forecast_chips(trial: Trial) -> list[ChipForecast]:
    """Predict the training on each chip of gpu_specs.json with one name. Empty if the model's sizes are not known."""
    config = read_config(Path(trial.model))
    if trial.recipe == "fast" and unsupported_reason(config, trial, None) is not None:
        trial = as_stock(trial)
    try:
        return predict_chips(config, trial)
    except ConfigError:
        return []


def predict_chips(config: Mapping[str, Any], trial: Trial) -> list[ChipForecast]:
    """Predict a trial of a model's config.json, with its open fields as each chip's memory allows.

    Raises ConfigError for a model whose sizes are not known.
    """
    positions = trial.micro_batch_size * trial.max_seq_len
    open_fields = set(OPEN_FIELDS) & set(trial.derive)
    low, middle, high = RATIOS[trial.recipe]
    forecasts = []
    for name, chip, tflops in _named_chips():
        fitting = fastest_fit(config, trial, open_fields, _largest_peak(chip)) or trial
        seconds = positions / (throughput.positions_per_sec(config, fitting) * tflops)
        forecasts.append(
            ChipForecast(
                name=name,
                fits=memory.peak_bytes(config, fitting) <= _largest_peak(chip),
                row_sec=seconds * middle,
                row_sec_low=seconds * low,
                row_sec_high=seconds * high,
            )
        )
    return forecasts


def _named_chips() -> Iterator[tuple[str, gpu_specs.GpuSpec, float]]:
    """Yield name, figures and achievable TFLOP/s of each chip whose entry stands for one name."""
    for chip in gpu_specs.CHIPS:
        tflops = chip.matmul_tflops("bf16")
        if tflops is not None and re.fullmatch(r"[\w -]+", chip.names) is not None:
            yield f"NVIDIA {chip.names}", chip, tflops * throughput.ACHIEVABLE_SHARE


def _largest_peak(chip: gpu_specs.GpuSpec) -> int:
    return memory.largest_peak(chip.memory_gb * 10**9)
