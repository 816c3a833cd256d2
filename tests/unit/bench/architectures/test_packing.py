"""Types of models that transformers registers: losses in a micro-batch are those of single samples.

Every type in a thorough run, and by `python -m tests.benchmarks.every_type`.
"""

import contextlib
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from bench.adapter.check import plain_losses
from bench.architectures import find
from bench.architectures.architecture import Separation
from bench.data.masking import Example
from bench.qlora.step import Placement, TrainingStep
from bench.workloads.finetune import evaluate
from bench.workloads.finetune.training_set import RowCollator, TrainingSet
from bench.workloads.ranks.process import RankGroup
from tests.support import tiny_models
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.slow
LENGTHS = (37, 11, 64, 23, 5, 40, 64, 30)
MAX_SEQ_LEN, ROW_TOKENS = 64, 192
AT_LEAST = 145  # types of transformers 5.17 with a tiny model
TOKENIZER: Any = SimpleNamespace(pad_token_id=0, eos_token_id=2)


class Examples(list[Example]):
    """Examples with what a training's file of them has."""

    @property
    def lengths(self) -> list[int]:
        return [len(example.ids) for example in self]

    @property
    def digests(self) -> list[bytes]:
        return [example.digest for example in self]


def make_examples(torch: Any) -> Examples:
    generator = torch.Generator().manual_seed(2)
    examples = Examples()
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(3, tiny_models.VOCABULARY, (length,), generator=generator).tolist()
        targets = bytes([0, *([1] * (length - 1))])
        examples.append(Example(ids=array("i", ids), targets=targets, file="d.jsonl", line=str(number)))
    return examples


def make_sensitive(torch: Any, model: Any) -> Any:
    """Give linear layers and embeddings weights with which each layer matters as much as the residual stream."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                if isinstance(module, torch.nn.Linear | torch.nn.Embedding) and name == "weight":
                    gain = 1.2 * weight.shape[1] ** -0.5 if isinstance(module, torch.nn.Linear) else 1.0
                    weight.copy_(gain * torch.randn(weight.shape, generator=generator))
    return model


def error(modules: Any, model_type: str, separation: Separation | None = None, **changes: Any) -> float:
    """Return the largest relative difference of an example's loss in its row from its single loss."""
    torch, examples = modules.torch, make_examples(modules.torch)
    model = make_sensitive(torch, tiny_models.tiny_model(modules, model_type, **changes).float())
    config = model.config.to_dict()
    separation = find(config).separation(config) if separation is None else separation
    model.config.get_text_config().use_cache = False  # with a cache, transformers does not look at positions
    data: Any = SimpleNamespace(training=examples, validation=examples)
    training: Any = SimpleNamespace(rows_per_step=2, epochs=1, max_steps=None)
    material = TrainingSet(
        data=data, training=training, max_seq_len=MAX_SEQ_LEN, row_tokens=ROW_TOKENS, seed=1, sha256="",
        separation=separation,
    )  # fmt: skip
    step = TrainingStep(modules, model, None, Placement(device=torch.device("cpu"), compute_dtype=torch.float32))
    collate = RowCollator(material, TOKENIZER)
    losses = evaluate.example_losses(torch, step, material, collate, RankGroup(torch), lambda _: None)
    model.eval()
    single = plain_losses(torch, model, examples)
    return max(abs(loss - expected) / expected for loss, expected in zip(losses, single, strict=True))


def test_each_sample_has_its_single_loss(modules):
    errors = {}
    for name in tiny_models.tested_types(modules):
        with contextlib.suppress(tiny_models.NoTinyModel):
            errors[name] = error(modules, name)
    assert {name: value for name, value in errors.items() if value > 1e-4} == {}
    assert len(errors) >= (AT_LEAST if THOROUGH else len(tiny_models.UNLIKE))


LONG_ROPE = {
    "original_max_position_embeddings": 30,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "short_mscale": 1.1,
        "long_mscale": 1.2,
        "original_max_position_embeddings": 30,
        "factor": 4.0,
    },
}


@pytest.mark.parametrize("model_type", ["phi3", "phimoe", "minicpm3"])
def test_a_samples_own_length_decides_longropes_factors(modules, model_type):
    assert error(modules, model_type, **LONG_ROPE) < 1e-4 < error(modules, model_type, Separation(), **LONG_ROPE)
    assert error(modules, model_type, Separation(is_packed=False, short=30), **LONG_ROPE) < 1e-4
