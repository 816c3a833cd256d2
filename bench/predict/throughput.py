"""Predictions before a training starts: the speed of its positions, and its peak memory on this machine's GPU.

`bench.predict.memory` has the memory; rows are packed to one length, so all are equal. `bench.predict.chips` has the
time of a training.
"""

from collections.abc import Mapping
from typing import Any

from bench.architectures import find
from bench.architectures.architecture import has_all_weights
from bench.data.packing import LAUNCH_TOKENS
from bench.data.trial_inputs import as_stock, built_recipe, unsupported_reason
from bench.machine import nvml
from bench.predict import flops, memory
from bench.records import Trial
from bench.records.forecast import Forecast

# Share of the matrix-product rate that each recipe reaches, measured (docs/performance.md). It only orders candidates.
EFFICIENCY = {"reference": 0.29, "stock": 0.62, "fast": 0.74}
PRODUCT_SPEEDUP = {"bf16": 1.0, "int8": 1.5}  # recipe `fast` by matmul precision, measured
# Of these, a mixture's share: products of 128 experts in NF4, forward and backward, took 4.07 ms on an H200 for 0.62
# TFLOP (n=12), where `stock` does as much in 1.5 ms.
MIXTURE_SHARE = 0.37
# The matrix product reaches 70 % of the published figure (H200, docs/measurements.md). The recipes' shares refer to it.
ACHIEVABLE_SHARE = 0.70


def positions_per_sec(config: Mapping[str, Any], trial: Trial) -> float:
    """Estimate the token positions per second on a GPU of 1 TFLOP/s; only good enough to order candidates."""
    positions = float(trial.micro_batch_size * trial.max_seq_len)
    # In a row of varlen a mask separates the samples, and every position is multiplied with the whole row; the kernels
    # of `fast` skip masked pairs. Measured at 20,480 positions: 3 times the padded step's time.
    is_masked = trial.layout == "varlen" and trial.recipe != "fast" and find(config).is_packed
    cost = flops.trial_flops(config, trial, int(positions) if is_masked else trial.max_seq_len)
    recompute = cost.recompute / max(1, trial.checkpoint_every)
    saturation = positions / (positions + LAUNCH_TOKENS)
    record = flops.recorded(config)
    saturation *= MIXTURE_SHARE if record is not None and record.experts else 1.0
    return EFFICIENCY[trial.recipe] * PRODUCT_SPEEDUP[trial.matmul] * saturation * 1e12 / (cost.model + recompute)


def forecast(config: Mapping[str, Any], model_sha256: str, trial: Trial) -> Forecast:
    """Predict memory of a training of a checked model."""
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
        model_sha256=model_sha256,
        gpu=None if gpu is None else gpu.name,
        gpus=len(gpus),
        gpu_memory_bytes=None if gpu is None else gpu.read().memory_total_bytes,
        peak_bytes=None if gpu is None else memory.peak_bytes(config, trial),
        recipe=recipe,
        can_use_int8=gpu is not None and recipe == "fast" and has_all_weights(config),
    )
