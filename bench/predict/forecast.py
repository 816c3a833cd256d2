"""What can be said of a training before it starts: its memory, and a step's time by the chip's figures.

Peak memory is the footprint of the trial on a GPU (`bench.predict.memory`): rows are packed to one length, so the
longest is like every other. A step's time is one rank's, without communication: positions over the rate that
`bench.predict.throughput` expects of the recipe. That is an estimate; measured steps are better wherever there are some.

Not covered: CPUs, and chips whose figures are not known: both have no predicted time.
"""

from pathlib import Path
from typing import Any

from bench.data.model_folder import config_of
from bench.data.trial_inputs import check_model_of
from bench.machine import gpu_specs, nvml
from bench.predict import flops, memory, throughput
from bench.records import Trial
from bench.records.training import Forecast

# The matrix product reaches 70 % of the published figure (H200, docs/measurements.md), and so do the recipes' shares.
OF_THE_FIGURE = 0.70


def forecast(trial: Trial) -> Forecast:
    """Raises InputError for a model that cannot be used, or that does not suit the trial."""
    model, config = check_model_of(trial), config_of(Path(trial.model))
    nvml.order_like_the_library()
    gpus = nvml.gpus_here()
    gpu = gpus[0] if gpus else None
    return Forecast(
        model_sha256=model.sha256,
        gpu=None if gpu is None else gpu.name,
        gpus=len(gpus),
        gpu_memory_bytes=None if gpu is None else gpu.read().memory_total_bytes,
        peak_bytes=None if gpu is None else memory.peak_bytes(config, trial),
        adapter_weights=flops.adapter_weights(config, trial.lora_rank, trial.lora_targets),
        row_sec=None if gpu is None else _row_sec(trial, config, gpu.name),
    )


def _row_sec(trial: Trial, config: dict[str, Any], gpu: str | None) -> float | None:
    """Seconds for one packed row on one GPU of this name; None where its figures are not known."""
    chip = gpu_specs.lookup(gpu)
    tflops = None if chip is None else chip.matmul_tflops("bf16")
    if tflops is None:
        return None
    positions = trial.micro_batch_size * trial.max_seq_len
    return positions / (throughput.rate(config, trial) * tflops * OF_THE_FIGURE)
