"""What `inv tune` needs before its first trial: the GPU, the lengths of the samples, and which trials would fit.

Takes seconds: samples are tokenized, no weights are read. One JSON document covers a whole list of trials.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.data.collate import BUCKET_TOKENS, make_rows
from bench.data.conversations import read_data
from bench.data.inputs import ConversationStats
from bench.data.model_folder import check_model, config_of
from bench.data.packing import Row, apart, bucketed
from bench.data.tokenizer import load_tokenizer
from bench.machine import nvml
from bench.predict import flops, memory
from bench.records import Trial

MOST_SAMPLES = 4096  # enough for a share of padding to within a percent
PERCENTILES = (50, *range(90, 101))
# Share of the matrix-product rate that each recipe reaches, measured (docs/performance.md). It only orders candidates.
EFFICIENCY = {"reference": 0.29, "stock": 0.62, "fast": 0.74}
FASTER = {"bf16": 1.0, "eight_backward": 1.2, "eight": 1.5}  # of `fast`, products in 8 bits, measured likewise
SATURATING_TOKENS = 1024.0  # at this many positions a step reaches half of its best rate


def survey(model: str, data: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """Facts of this machine, model and data, and the prediction for each trial. Raises InputError."""
    facts = check_model(Path(model))
    data_facts, conversations = read_data(Path(data))
    config = config_of(Path(model))
    lengths = sample_lengths(model, data, conversations, facts.max_position_embeddings)
    return {
        "gpu": _gpu(),
        "model": {
            "sha256": facts.sha256,
            "depth": int(config["num_hidden_layers"]),
            "positions": facts.max_position_embeddings,
        },
        "data": {
            "sha256": data_facts.sha256,
            "samples": data_facts.samples,
            "mean_tokens": sum(lengths) / len(lengths),
            "percentiles": {str(share): percentile(lengths, share) for share in PERCENTILES},
        },
        "trials": [predicted(config, trial, lengths) for trial in trials],
    }


def predicted(config: dict[str, Any], trial: Trial, lengths: list[int]) -> dict[str, Any]:
    """One trial's `peak_bytes` on a GPU, `layer_bytes` that each held layer would add, `useful_share` of its positions,
    and `score` to order by: rate times share."""
    share, peak = useful_share(trial, lengths), memory.peak_bytes(config, trial)
    can_hold = trial.recipe == "fast" and not trial.held_layers
    return {
        "peak_bytes": peak,
        "layer_bytes": memory.peak_bytes(config, replace(trial, held_layers=1)) - peak if can_hold else 0,
        "useful_share": share,
        "score": rate(config, trial) * share,
    }


def rate(config: Mapping[str, Any], trial: Trial) -> float:
    """Estimated token positions a second of a GPU with 1 TFLOP/s; only good enough to order candidates."""
    positions = float(trial.micro_batch_size * trial.max_seq_len)
    # In a row of varlen a mask separates the samples, and every position is multiplied with the whole row; the kernels
    # of `fast` skip masked pairs. Measured at 20,480 positions: 3 times the padded step's time.
    is_masked = trial.layout == "varlen" and trial.recipe != "fast"
    cost = flops.of_trial(config, trial, int(positions) if is_masked else trial.max_seq_len)
    again = cost.recompute / max(1, trial.checkpoint_every)
    filled = positions / (positions + SATURATING_TOKENS)
    return EFFICIENCY[trial.recipe] * FASTER[trial.products] * filled * 1e12 / (cost.model + again)


def useful_share(trial: Trial, lengths: list[int]) -> float:
    """Tokens that are not padding per computed position, for samples of these lengths, cut at the trial's length."""
    longest, batch = trial.max_seq_len, trial.micro_batch_size
    cut = [min(length, longest) for length in lengths if length > 0]
    if trial.layout == "pack":
        return 1.0
    if trial.layout == "varlen":
        rows = apart(([0] * length for length in cut), longest, batch * longest, len(cut))
        return sum(len(row.ids) for row in rows) / (len(rows) * batch * longest)
    rows = [Row(ids=[0] * length, samples=1) for length in cut]
    if trial.layout == "pad" or len(rows) < batch:
        return sum(cut) / (len(cut) * longest)
    rows = bucketed(rows, batch, 0)
    positions = 0
    for first in range(0, len(rows), batch):
        part = rows[first : first + batch]
        longest_here = max(len(row.ids) for row in part)
        positions += len(part) * min(longest, -(-longest_here // BUCKET_TOKENS) * BUCKET_TOKENS)
    return sum(cut) / positions


def percentile(lengths: list[int], share: int) -> int:
    """The smallest length that `share` % of the samples do not exceed."""
    ordered = sorted(lengths)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def sample_lengths(model: str, data: str, conversations: list[ConversationStats], positions: int) -> list[int]:
    """Lengths in tokens of up to MOST_SAMPLES samples, drawn and cut as in a trial. Raises InputError."""
    whole = Trial(
        name="survey",
        reason="how long the samples are",
        suite="survey",
        profile="tiny",
        model=model,
        data=data,
        max_seq_len=positions,
        micro_batch_size=1,
        warmup_steps=0,
        measured_steps=min(MOST_SAMPLES, len(conversations)),
    )
    rows = make_rows(whole, conversations, load_tokenizer(Path(model)))
    return [len(row.ids) for row in rows]


def _gpu() -> dict[str, Any] | None:
    """Name and memory of the GPU that a trial would use; None where there is none."""
    nvml.order_like_the_library()
    gpus = nvml.gpus_here()
    return {"name": gpus[0].name, "memory_bytes": gpus[0].read().memory_total_bytes} if gpus else None
