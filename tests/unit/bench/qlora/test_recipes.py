"""The recipe `fast` in float32 on a CPU: saved, recomputed and held layers, 8 bits, and fallbacks, on small models.

Not covered: the Triton kernels (tests/gpu/test_kernels.py), and bf16 at full size (tests/benchmarks/fast_equal.py).
"""

import dataclasses
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import torch_stack
from bench.data import trial_inputs
from bench.data.collate import Batch, make_batches, rows_per_batch
from bench.data.model_folder import read_config
from bench.data.packing import Row, pack_whole_samples
from bench.kernels.int8.row_quant import QuantizedBlocks
from bench.qlora import experts, recipes
from bench.qlora.recipes import fast, stock
from bench.qlora.step import Placement, TrainingStep, load_base
from bench.records import Trial
from bench.records.validation import ALL_LINEAR
from tests.support import families
from tests.support.families import LossAndGradients, gradient_errors, loss_and_gradients
from tests.support.random_adapters import with_random_b

# `torch_stack.load` filters this warning for the process; pytest resets the filter for every test.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
CPU = Placement(device=torch.device("cpu"), compute_dtype=torch.float32)
TOKENIZER: Any = SimpleNamespace(pad_token_id=0, eos_token_id=1)
MODELS: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral"},
    "llama": {"model_type": "llama"},
    "length-dependent rope": {
        "model_type": "llama",
        "max_position_embeddings": 16,  # less than the test's lengths, so that they change the angles
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    },
    "biased": {"model_type": "llama", "attention_bias": True},
    "odd heads": {"model_type": "mistral", "head_dim": 20},
    "narrow": {"model_type": "llama", "intermediate_size": 96},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "mixture": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
    "ministral3 with a short context": {
        "model_type": "ministral3",
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.1,
        },
    },
}


@pytest.fixture
def build(modules, folder_of, make_trial) -> Callable[..., tuple[TrainingStep, Trial]]:
    def make(recipe: str, model: str = "mistral", **changes: Any) -> tuple[TrainingStep, Trial]:
        fields = {"max_seq_len": 24, "micro_batch_size": 3, "lora_dropout": 0.0, "learning_rate": 4e-3, "lora_rank": 4}
        trial = make_trial(**(fields | {"recipe": recipe, "model": str(folder_of(**MODELS[model]))} | changes))
        step = recipes.build(recipe, modules, trial, CPU, load_base(modules, trial, CPU))
        with_random_b(step.model)
        return step, trial

    return make


def samples(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(2, families.SIZES["vocab_size"], (length,), generator=generator).tolist() for length in lengths
    ]


def batches(modules: torch_stack.Stack, trial: Trial, rows: list[Row]) -> list[Batch]:
    steps = len(rows) // rows_per_batch(trial)
    trial = dataclasses.replace(trial, warmup_steps=0, measured_steps=steps)
    return list(make_batches(modules, trial, rows, TOKENIZER, pin_memory=False))


def padded(*texts: list[int]) -> list[Row]:
    return [Row(ids=text) for text in texts]


def largest_error(result: LossAndGradients, expected: LossAndGradients) -> float:
    """Return the largest relative error of a gradient."""
    return max(gradient_errors(result, expected).values())


# The same loss and the same gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "products"), [("qwen3", 0), ("mixture", 5)])
def test_norms_of_heads_and_experts_are_bit_identical_saved_or_recomputed(modules, build, monkeypatch, model, products):
    """A recomputed layer repeats no product of its experts: two forward, three backward."""
    results, calls, product = [], [], experts.grouped_product
    monkeypatch.setattr(experts, "grouped_product", lambda *args: calls.append(1) or product(*args))
    for is_recomputed in (False, True):
        step, trial = build("fast", model, lora_dropout=0.2, gradient_checkpointing=is_recomputed)
        results.append(loss_and_gradients(step, batches(modules, trial, padded(*samples(24, 9, 17)))[0]))
        assert len(calls) == products * len(step.model._layers)
        calls.clear()
    assert results[0][0] == results[1][0]
    assert all(torch.equal(each, results[1][1][name]) for name, each in results[0][1].items())


def test_int8_matmul_has_nearly_the_references_gradients(modules, build, monkeypatch):
    """With adapters on some layers; test_families.py has all of them."""
    monkeypatch.setattr(fast.int8, "unsupported_reason", lambda *_: None)  # the arithmetic in plain PyTorch
    options = {"lora_targets": ("q_proj", "v_proj")}
    step, trial = build("fast", matmul="int8", held_layers=1, **options)
    batch = batches(modules, trial, padded(*samples(24, 9, 17)))[0]
    result, exact = loss_and_gradients(step, batch), loss_and_gradients(build("fast", **options)[0], batch)
    assert step.notes == ("matmul int8",)
    with torch.no_grad():  # evaluated in 16 bits
        assert float(step.model.eval()(batch.input_ids, batch.labels).loss) == pytest.approx(exact[0], rel=1e-6)
    assert result[0] == pytest.approx(exact[0], rel=0.01)
    assert 1e-4 < largest_error(result, exact) < 0.1


@pytest.mark.parametrize(("model", "inner", "in_blocks"), [("mistral", 128, True), ("phi3", 192, False)])
def test_gate_and_up_are_in_blocks_only_if_each_is_a_multiple_of_a_block(
    modules, folder_of, make_trial, monkeypatch, model, inner, in_blocks
):
    """Joined in one weight of 384 rows, three blocks, gate would end within a block."""
    monkeypatch.setattr(fast.int8, "unsupported_reason", lambda *_: None)
    folder = folder_of(model, intermediate_size=inner, pad_token_id=0)
    trial = make_trial(model=str(folder), recipe="fast", matmul="int8")
    step = recipes.build("fast", modules, trial, CPU, load_base(modules, trial, CPU))
    gate_up, _ = step.model._layers[0].mlp.gate_up.forward(torch.randn(3, 64), None, in_blocks=True)
    assert isinstance(gate_up, QuantizedBlocks) is in_blocks


def test_int8_matmul_falls_back_to_bf16_with_a_reason(build):
    step, _ = build("fast", matmul="int8")
    assert step.recipe == "fast"
    assert step.notes == step.flags == ("matmul bf16 (int8 is not supported: no GPU)",)


def test_a_shape_that_int8_matmul_does_not_support_is_named():
    cuda = Placement(device=torch.device("cuda"), compute_dtype=None)
    assert fast.int8.unsupported_reason(cuda, [(64, 64), (72, 64)]) == "a weight of 72 x 64, not multiples of 16"
    assert fast.int8.unsupported_reason(cuda, [(64, 64), (1536, 576)]) is None


@pytest.mark.parametrize("model", ["llama", "length-dependent rope"])
def test_batches_of_changing_lengths_have_the_references_gradients(modules, build, model):
    (step, trial), (reference, _) = build("fast", model, layout="varlen"), build("reference", model)
    short, long = (
        batches(modules, dataclasses.replace(trial, layout="pad", max_seq_len=length), padded(*samples(length, 9, 5)))
        for length in (9, 24)
    )
    packed = batches(modules, trial, pack_whole_samples(samples(24, 9, 17), 24, 72, 1))
    for batch in (*short, *long, *packed, *short):
        assert largest_error(loss_and_gradients(step, batch), loss_and_gradients(reference, batch)) < 2e-5


def test_saving_recomputing_offloading_and_holding_are_bit_identical(modules, build):
    choices: list[dict[str, Any]] = [
        {"gradient_checkpointing": False},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "checkpoint_every": 2},
        {"gradient_checkpointing": True, "offload_checkpoints": True},
        {"gradient_checkpointing": False, "held_layers": 2},
    ]
    results = []
    for choice in choices:
        step, trial = build("fast", lora_dropout=0.2, lora_targets=ALL_LINEAR, **choice)
        results.append(loss_and_gradients(step, batches(modules, trial, padded(*samples(24, 9, 17)))[0]))
    for loss, gradients in results[1:]:
        assert loss == results[0][0]
        assert all(torch.equal(each, results[0][1][name]) for name, each in gradients.items())


def test_inputs_are_offloaded_only_for_backward(modules, build):
    step, trial = build("fast", gradient_checkpointing=True, offload_checkpoints=True)
    for action in (step.model.eval, step.on_device):
        step.model.graph = object()
        action()
        assert step.model.graph is None
    step.model.train()
    batch, offload = batches(modules, trial, padded(*samples(24, 9, 17)))[0], step.model.offload
    with torch.no_grad():
        step.model(**step.inputs(batch))
    step.model.token_losses(**step.inputs(batch))
    assert offload._on_device == {}
    loss = step.model(**step.inputs(batch)).loss
    assert sorted(offload._on_device) == list(range(len(step.model._layers)))
    loss.backward()
    assert offload._on_device == {}


# Training -------------------------------------------------------------------------------------------------------------


def test_two_micro_batches_a_step_are_one_of_twice_the_size(modules, build):
    texts = samples(*[24] * 6)
    (twice, trial), (once, trial_once) = build("fast"), build("fast", micro_batch_size=6)
    first = float(twice(iter(batches(modules, trial, padded(*texts))), 2))
    assert first == pytest.approx(float(once(iter(batches(modules, trial_once, padded(*texts))), 1)), rel=1e-6)
    for parameter, other in zip(twice._trained, once._trained, strict=True):
        assert torch.allclose(parameter, other, atol=1e-5)


# Fallback to stock ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        ("biased", {}, "a bias on the output of attention"),
        ("odd heads", {"held_layers": 1}, "heads 20 wide, not a multiple of 8 up to 256; without held_layers"),
        ("ministral3 with a short context", {}, "queries scaled from position 16 on"),
        ("narrow", {}, "down_proj takes 96 numbers, not a multiple of 64"),
        (
            "mistral",
            {"base_precision": "bf16", "matmul": "int8"},
            "a base in bf16, not NF4; without matmul int8",
        ),
    ],
)
def test_a_model_that_fast_does_not_support_trains_with_stock_and_a_reason(modules, build, model, changes, reason):
    step, trial = build("fast", model, **changes)
    assert step.recipe == f"stock (fast is not supported: {reason})"
    assert step.flags == (f"recipe {step.recipe}",)
    # The forecast names the same fallback before a model is loaded.
    expected = trial_inputs.unsupported_reason(read_config(Path(trial.model)), trial, capability=None)
    assert step.recipe == trial_inputs.built_recipe(trial, expected)
    assert float(step(iter(batches(modules, trial, padded(*samples(24, 9, 17)))), 1)) > 0


@pytest.mark.parametrize(
    ("capability", "torch_version", "has_triton", "reason"),
    [
        ((7, 5), "2.11.0+cu130", True, "a GPU of compute capability 7.5; the kernels need 8.0 (A100, A10) or newer"),
        ((8, 6), "2.1.2+cu121", True, "torch 2.1.2+cu121; the recipe needs the operators of 2.10"),
        ((8, 6), "2.10.0", False, "triton is not installed"),
        ((8, 6), "2.10.0", True, None),
    ],
)
def test_a_device_that_fast_does_not_support_is_named(monkeypatch, capability, torch_version, has_triton, reason):
    cuda = SimpleNamespace(get_device_capability=lambda _: capability)
    fake: Any = SimpleNamespace(torch=SimpleNamespace(cuda=cuda, __version__=torch_version))
    monkeypatch.setattr(fast, "HAS_TRITON", has_triton)
    assert fast._unsupported_device(fake, Placement(device=torch.device("cuda"), compute_dtype=None)) == reason


@pytest.mark.parametrize(
    ("model_type", "patched", "only_loss"),
    [("mistral", True, True), ("ministral3", True, False), ("bloom", False, True)],
)
def test_stock_takes_ligers_patch_for_the_same_modules(monkeypatch, model_type, patched, only_loss):
    calls = []

    def apply(rms_norm=True, fused_linear_cross_entropy=True, model=None):
        calls.append((rms_norm, fused_linear_cross_entropy, model))

    liger = SimpleNamespace(__spec__=ModuleSpec("liger_kernel", None))
    monkeypatch.setitem(sys.modules, "liger_kernel", liger)
    patches = SimpleNamespace(apply_liger_kernel_to_mistral=apply)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", patches)
    config = {"model_type": model_type}
    base = SimpleNamespace(config=SimpleNamespace(model_type=model_type, to_dict=lambda: config))
    assert stock._patch_by_liger(base, only_loss=only_loss) == patched
    assert calls == [(not only_loss, True, base)] * patched
