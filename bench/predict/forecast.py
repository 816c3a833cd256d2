"""Forecast of a training before it starts: its peak memory, and a step's time from the GPU's published figures.

Peak memory is that of the trial on a GPU (`bench.predict.memory`): rows are packed to one length, so all are equal. A
step's time is one rank's, without communication: positions over the rate that `bench.predict.throughput` expects of the
recipe. It is an estimate; measured steps are better.

Not covered: the time on CPUs and on GPUs without known figures.
"""

from pathlib import Path
from typing import Any

from bench.data.model_folder import read_config
from bench.data.trial_inputs import as_stock, built_recipe, check_trial_model, unsupported_reason
from bench.machine import gpu_specs, nvml
from bench.predict import flops, memory, throughput
from bench.records import Trial
from bench.records.training import Forecast

# The matrix product reaches 70 % of the published figure (H200, docs/measurements.md). The recipes' shares refer to it.
ACHIEVABLE_SHARE = 0.70


def forecast(trial: Trial) -> Forecast:
    """Predict memory and time. Raises InputError for a model that cannot be used or does not suit the trial."""
    model, config = check_trial_model(trial), read_config(Path(trial.model))
    nvml.number_gpus_by_bus()
    gpus = nvml.visible_gpus()
    gpu = gpus[0] if gpus else None
    reason = None
    if trial.recipe == "fast":
        reason = unsupported_reason(config, trial, None if gpu is None else gpu.compute_capability)
    recipe = built_recipe(trial, reason)
    if reason is not None:
        trial = as_stock(trial)
    return Forecast(
        model_sha256=model.sha256,
        gpu=None if gpu is None else gpu.name,
        gpus=len(gpus),
        gpu_memory_bytes=None if gpu is None else gpu.read().memory_total_bytes,
        peak_bytes=None if gpu is None else memory.peak_bytes(config, trial),
        adapter_weights=flops.adapter_weights(config, trial.lora_rank, trial.lora_targets),
        row_sec=None if gpu is None else _row_sec(trial, config, gpu.name),
        recipe=recipe,
    )


def _row_sec(trial: Trial, config: dict[str, Any], gpu: str | None) -> float | None:
    """Estimate the seconds of one packed row on a GPU of this name; None if its figures are unknown."""
    chip = gpu_specs.lookup(gpu)
    tflops = None if chip is None else chip.matmul_tflops("bf16")
    if tflops is None:
        return None
    positions = trial.micro_batch_size * trial.max_seq_len
    return positions / (throughput.positions_per_sec(config, trial) * tflops * ACHIEVABLE_SHARE)
