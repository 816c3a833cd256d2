"""FLOP per token, from a model's config.json and a trial: pure arithmetic, nothing measured.

One multiply-add is two FLOP. A linear layer of N weights costs 2N a token forward, 2N backward for the gradient of its
input and 2N for the gradient of its weights (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section
2.1, table 1: C_forward = 2N, backward twice that: the well-known 6N). QLoRA freezes the base, so its layers cost 4N:
the gradient passes through them to the adapters below, but their weights get none. The adapters cost 6N.

Norms, rotary embedding, activation functions, softmax, the loss, dequantization and the optimizer are left out, as
usual: together they are far below a percent at these sizes. An embedding lookup costs no FLOP.

The weights of a type without a whole declaration are those of the record of its base, which `sized_config` of
`bench.qlora.step` puts into its config. Not covered: the states of state-space layers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench.architectures import find
from bench.architectures.architecture import has_all_weights
from bench.architectures.unregistered import BASE_RECORD, experts_of_a_token
from bench.records import Trial
from bench.records.adapter import BaseRecord

ConfigReader: TypeAlias = Callable[[Trial], Mapping[str, Any]]  # reads the config of a trial's model


@dataclass(frozen=True, kw_only=True)
class TokenFlops:
    """FLOP per token position of one training step. `recompute` is the extra cost of gradient checkpointing, else 0."""

    forward: int
    backward: int
    recompute: int

    @property
    def model(self) -> int:
        """FLOP of forward and backward: the numerator of MFU, without recomputation."""
        return self.forward + self.backward


def recorded(config: Mapping[str, Any]) -> BaseRecord | None:
    """Return the record of a model's base; None for a whole declaration, from which weights are computed."""
    record: BaseRecord | None = config.get(BASE_RECORD) if has_all_weights(config) else config[BASE_RECORD]
    return record


def block_weights(config: Mapping[str, Any], *, active: bool = False) -> int:
    """Count the weights of all blocks, which NF4 quantizes, or those `active` for a token."""
    architecture = find(config)
    if (record := recorded(config)) is not None:
        share = experts_of_a_token(config) if active else None
        experts = [shape for shapes in record.experts.values() for shape in shapes]
        used = (math.prod(shape[1:]) * min(share or shape[0], shape[0]) for shape in experts)
        return sum(inputs * outputs for inputs, outputs in record.matrices.values()) + sum(used)
    per_block = sum(inputs * outputs for inputs, outputs in architecture.shapes(config).values())
    return architecture.geometry(config).layers * per_block


def head_weights(config: Mapping[str, Any]) -> int:
    """Count the weights of lm_head, also if it is tied to the embeddings: it is computed either way."""
    geometry = find(config).geometry(config)
    return geometry.hidden * geometry.vocabulary


def adapter_weights(config: Mapping[str, Any], rank: int, targets: Iterable[str]) -> int:
    """Count the weights of LoRA's A (in x rank) and B (rank x out) on every target (Hu et al. 2021, section 4.1)."""
    architecture = find(config)
    if (record := recorded(config)) is not None:
        names = tuple(f".{name}" for name in architecture.select(targets))
        return rank * sum(sum(sizes) for name, sizes in record.matrices.items() if name.endswith(names))
    shapes = architecture.shapes(config)
    per_block = sum(rank * sum(shapes[name]) for name in architecture.select(targets))
    return architecture.geometry(config).layers * per_block


def attention_forward(config: Mapping[str, Any], sequence: int) -> int:
    """Count forward FLOP per token of attention: 2 products x 2 FLOP x `sequence` x heads x width x blocks.

    The products are Q K^T and the weighted sum of V.

    Every query counts against all positions, the half above the diagonal included: the convention of PaLM's 12 L H Q T
    for forward and backward (Chowdhery et al. 2022, appendix B), and the work of a kernel with a padding mask.
    """
    geometry = find(config).geometry(config)
    return 4 * geometry.layers * geometry.query * min(sequence, geometry.window or sequence)


def per_token(
    config: Mapping[str, Any], *, sequence: int, rank: int, targets: Iterable[str], checkpointing: bool
) -> TokenFlops:
    """Count a training step's FLOP per token position, in rows of `sequence` tokens.

    forward   = 2 (blocks + head + adapters) + attention
    backward  = 2 (blocks + head) + 4 adapters + 2 attention
    recompute = 2 (blocks + adapters) + attention, with gradient checkpointing: every block runs forward once more; the
                head lies behind the last checkpoint and does not (Chen et al. 2016, "Training Deep Nets with Sublinear
                Memory Cost": one more forward pass)

    Attention's backward is twice its forward: four products of the same size. Internal recomputation of a fused
    attention kernel is not counted. The first block is overcounted without checkpointing, as nothing below it needs a
    gradient: 1 in 32 of the q, k and v layers' 2N.
    """
    base, head = block_weights(config, active=True), head_weights(config)
    adapters, attention = adapter_weights(config, rank, list(targets)), attention_forward(config, sequence)
    return TokenFlops(
        forward=2 * (base + head + adapters) + attention,
        backward=2 * (base + head) + 4 * adapters + 2 * attention,
        recompute=2 * (base + adapters) + attention if checkpointing else 0,
    )


def trial_flops(config: Mapping[str, Any], trial: Trial, sequence: int | None = None) -> TokenFlops:
    """Count `per_token` of a training trial.

    In the layout varlen, samples attend to less than a row, so attention is not counted unless `sequence` gives the
    number of positions that each position attends to.
    """
    if sequence is None:
        sequence = 0 if trial.layout == "varlen" else trial.max_seq_len
    return per_token(
        config,
        sequence=sequence,
        rank=trial.lora_rank,
        targets=trial.lora_targets,
        checkpointing=trial.gradient_checkpointing,
    )


def mfu_percent(flop_per_token: float, tokens_per_sec: float, matmul_tflops: float) -> float:
    """Compute model FLOP utilization (Chowdhery et al. 2022, section 4.1): useful FLOP/s over the device's peak.

    The peak is the matrix-product rate measured on the same device in the same run, not the data sheet's.
    """
    return 100.0 * flop_per_token * tokens_per_sec / (matmul_tflops * 1e12)
