"""Predictions before a trial or a training starts: memory, speed and padding.

`survey`, for `inv tune` before its first trial: the GPU, the lengths of the samples, and each trial's memory. It takes
seconds: samples are tokenized, no weights are read. One JSON document covers a whole list of trials.

`forecast`, of a training: its peak memory on a GPU (`bench.predict.memory`; rows are packed to one length, so all are
equal). `bench.predict.chips` has its time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.architectures import find
from bench.data.collate import BUCKET_TOKENS, make_rows
from bench.data.inputs import Conversation
from bench.data.model_folder import check_model
from bench.data.packing import LAUNCH_TOKENS, PACKED, Row, bucket_by_length, fill_rows
from bench.data.readers import read_data
from bench.data.tokenizer import load_trial_tokenizer
from bench.data.trial_inputs import as_stock, built_recipe, data_options, unsupported_reason
from bench.machine import nvml
from bench.predict import flops, memory
from bench.predict.flops import ConfigReader
from bench.records import Trial
from bench.records.forecast import Forecast
from bench.records.training import DataOptions

MAX_SAMPLES = 4096  # enough to estimate the padding to within a percent
PERCENTILES = (50, *range(90, 101))
# Share of the matrix-product rate that each recipe reaches, measured (docs/performance.md). It only orders candidates.
EFFICIENCY = {"reference": 0.29, "stock": 0.62, "fast": 0.74}
PRODUCT_SPEEDUP = {"bf16": 1.0, "int8_backward": 1.2, "int8": 1.5}  # recipe `fast` by matmul precision, measured
# Of these, a mixture's share: products of 128 experts in NF4, forward and backward, took 4.07 ms on an H200 for 0.62
# TFLOP (n=12), where `stock` does as much in 1.5 ms.
MIXTURE_SHARE = 0.37
# The matrix product reaches 70 % of the published figure (H200, docs/measurements.md). The recipes' shares refer to it.
ACHIEVABLE_SHARE = 0.70


def survey(read: ConfigReader, model: str, data: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """Collect facts of this machine, model and data, and the prediction for each trial. Raises InputError.

    `read` reads the config of a trial's model, with its sizes. A trial that would not run as it is has no prediction.
    """
    facts = check_model(Path(model))
    options = data_options(trials, data)
    data_facts, conversations = read_data(Path(data), options)
    config = read(trials[0])
    lengths = sample_lengths(model, data, options, conversations, facts.max_position_embeddings)
    return {
        "gpu": _gpu(),
        "model": {
            "sha256": facts.sha256,
            "depth": find(config).geometry(config).layers,
            "positions": facts.max_position_embeddings,
        },
        "data": {
            "sha256": data_facts.sha256,
            "samples": data_facts.samples,
            "mean_tokens": sum(lengths) / len(lengths),
            "percentiles": {str(share): percentile(lengths, share) for share in PERCENTILES},
        },
        "trials": [predict_trial(config, trial, lengths) if _runs(config, trial) else None for trial in trials],
    }


def _runs(config: Mapping[str, Any], trial: Trial) -> bool:
    """Return whether a trial gets its own recipe, and its layout if that packs whole samples."""
    is_built = trial.recipe != "fast" or unsupported_reason(config, trial, None) is None
    return is_built and (trial.layout != "varlen" or find(config).is_packed)


def predict_trial(config: Mapping[str, Any], trial: Trial, lengths: list[int]) -> dict[str, Any]:
    """Predict one trial.

    `peak_bytes` is the peak on a GPU, `layer_bytes` the memory that each held layer would add, `useful_share` the share
    of positions that are not padding, and `score` the rate times this share, to order trials by.
    """
    share, peak = useful_share(trial, lengths), memory.peak_bytes(config, trial)
    can_hold = trial.recipe == "fast" and not trial.held_layers
    return {
        "peak_bytes": peak,
        "layer_bytes": memory.peak_bytes(config, replace(trial, held_layers=1)) - peak if can_hold else 0,
        "useful_share": share,
        "score": positions_per_sec(config, trial) * share,
    }


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


def useful_share(trial: Trial, lengths: list[int]) -> float:
    """Predict the share of positions that are not padding, for samples of these lengths, cut at the trial's length."""
    longest, batch = trial.max_seq_len, trial.micro_batch_size
    cut = [min(length, longest) for length in lengths if length > 0]
    if trial.layout == "pack":
        return 1.0
    if trial.layout == "varlen":
        return sum(cut) / (len(fill_rows(cut, cut, batch * longest, PACKED)) * batch * longest)
    rows = [Row(ids=[0] * length, samples=1) for length in cut]
    if trial.layout == "pad" or len(rows) < batch:
        return sum(cut) / (len(cut) * longest)
    rows = bucket_by_length(rows, batch, 0)
    positions = 0
    for first in range(0, len(rows), batch):
        bucket = rows[first : first + batch]
        longest_in_bucket = max(len(row.ids) for row in bucket)
        positions += len(bucket) * min(longest, -(-longest_in_bucket // BUCKET_TOKENS) * BUCKET_TOKENS)
    return sum(cut) / positions


def percentile(lengths: list[int], share: int) -> int:
    """Find the smallest length that `share` % of the samples do not exceed."""
    ordered = sorted(lengths)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def sample_lengths(
    model: str, data: str, options: DataOptions, conversations: list[Conversation], positions: int
) -> list[int]:
    """Measure the lengths in tokens of up to MAX_SAMPLES samples, drawn and cut as in a trial. Raises InputError."""
    trial = Trial(
        name="survey",
        reason="how long the samples are",
        suite="survey",
        profile="tiny",
        model=model,
        data=data,
        data_options=options,
        max_seq_len=positions,
        micro_batch_size=1,
        warmup_steps=0,
        measured_steps=min(MAX_SAMPLES, len(conversations)),
    )
    rows = make_rows(trial, conversations, load_trial_tokenizer(trial))
    return [len(row.ids) for row in rows]


def _gpu() -> dict[str, Any] | None:
    """Return name and memory of the GPU that a trial would use, and the largest peak that fits; None without a GPU."""
    nvml.number_gpus_by_bus()
    gpus = nvml.visible_gpus()
    if not gpus:
        return None
    total = gpus[0].usable_memory_bytes
    largest = None if total is None else memory.largest_peak(total)
    return {"name": gpus[0].name, "memory_bytes": total, "largest_peak_bytes": largest}


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
        adapter_weights=flops.adapter_weights(config, trial.lora_rank, trial.lora_targets),
        recipe=recipe,
    )
