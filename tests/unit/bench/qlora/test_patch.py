"""A patched peft model: loss and gradients of the plain model, in one's own loop and in transformers' Trainer.

Small random models in float32 on a CPU. Not covered: a GPU (tests/benchmarks/trainer_patch.py).
"""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.data.collate import Batch
from bench.kernels.loss import IGNORED
from bench.qlora import recipes
from bench.qlora.patch import UnsupportedBatch, UnsupportedModel, patch
from bench.qlora.step import Placement, load_base
from bench.records.validation import ALL_LINEAR
from tests.support.paths import ROOT
from tests.support.random_adapters import with_random_b

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
CPU = Placement(device=torch.device("cpu"), compute_dtype=torch.float32)
VOCABULARY, LENGTH = 96, 24
LOSS_ERROR, GRADIENT_ERROR = 1e-6, 2e-5  # relative, in float32


@pytest.fixture(scope="module")
def make_model(modules, folder_of, make_trial) -> Callable[..., Any]:
    """Return a factory of peft models in NF4 with a random B; keywords are LoRA's."""

    def make(model_type: str = "mistral", sizes: Any = None, precision: str = "nf4", **lora: Any) -> Any:
        base = load_base(
            modules, make_trial(model=str(folder_of(model_type, **(sizes or {}))), base_precision=precision), CPU
        )
        lora = {"r": 4, "lora_alpha": 8, "target_modules": list(ALL_LINEAR), "task_type": "CAUSAL_LM"} | lora
        modules.transformers.set_seed(3)
        return with_random_b(modules.peft.get_peft_model(base, modules.peft.LoraConfig(**lora)).train())

    return make


@pytest.fixture(scope="module")
def pair(make_model) -> tuple[Any, Any]:
    """Return a plain and a patched model, which a test leaves as they were."""
    return make_model(), patch(make_model())


def padded(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return rows padded at their end."""
    ids = torch.randint(2, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    labels = ids.masked_fill(mask == 0, IGNORED)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def packed(*rows: tuple[int, ...], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return rows of samples end to end."""
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in rows])
    ids = torch.randint(2, VOCABULARY, positions.shape, generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, IGNORED)}


def loss_and_gradients(model: Any, **inputs: Any) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return float(loss.detach()), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(result: Any, expected: Any) -> None:
    assert result[0] == pytest.approx(expected[0], rel=LOSS_ERROR)
    assert result[1].keys() == expected[1].keys()
    for name, each in expected[1].items():
        assert float((result[1][name] - each).norm() / each.norm()) < GRADIENT_ERROR, name


# The plain model's loss and gradients ---------------------------------------------------------------------------------

BATCHES = {
    "no mask": lambda: {name: each for name, each in padded(24, 24).items() if name != "attention_mask"},
    "padded": lambda: padded(24, 9, 17),
    "positions of padded rows": lambda: padded(24, 9) | {"position_ids": torch.arange(24)[None]},
    "several packed rows": lambda: packed((5, 12), (17,), (1, 1, 15)),
    "targets of a whole step": lambda: padded(24, 9, 17) | {"num_items_in_batch": 100},
}


@pytest.mark.parametrize("batch", BATCHES)
def test_loss_and_gradients_are_the_plain_models(pair, batch):
    plain, patched = (loss_and_gradients(model, **BATCHES[batch]()) for model in pair)
    assert len(plain[1]) == 2 * 3 * len(ALL_LINEAR)
    assert_equal(patched, plain)


def test_rows_packed_by_transformers(modules, pair):
    rows = [{"input_ids": row.tolist()} for row in padded(20, 20, 20)["input_ids"]]
    batch = modules.transformers.DataCollatorWithFlattening()(rows)
    assert batch["position_ids"].shape == (1, 60)
    plain, patched = (loss_and_gradients(model, **batch) for model in pair)
    assert_equal(patched, plain)


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ["k_proj", "down_proj"], "use_rslora": True},
        {"layers_to_transform": [1], "rank_pattern": {"o_proj": 8}},
    ],
    ids=str,
)
def test_adapters_on_some_layers(make_model, lora):
    batch = padded(24, 9, 17)
    assert_equal(
        loss_and_gradients(patch(make_model(**lora)), **batch), loss_and_gradients(make_model(**lora), **batch)
    )


def test_gradient_checkpointing_follows_the_models_switch(make_model):
    model, batch = patch(make_model(lora_dropout=0.2)), padded(24, 9, 17)

    def run() -> Any:
        torch.manual_seed(7)
        result = loss_and_gradients(model, **batch)
        return result, [layer.recompute for layer in vars(model)["_fast"]._layers]

    kept, flags = run()
    assert flags == [False] * 3
    model.gradient_checkpointing_enable()
    recomputed, flags = run()
    assert flags == [True] * 3
    model.gradient_checkpointing_disable()
    assert run()[1] == [False] * 3
    assert recomputed[0] == kept[0]
    assert all(torch.equal(each, kept[1][name]) for name, each in recomputed[1].items())


# The model stays a peft model -----------------------------------------------------------------------------------------


def test_state_and_saved_adapter_are_the_plain_models(modules, make_model, pair, tmp_path):
    plain, model = pair
    assert model.state_dict().keys() == plain.state_dict().keys()
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if "lora_" in name}
    model.save_pretrained(tmp_path)
    loaded = modules.peft.PeftModel.from_pretrained(make_model().unload(), tmp_path, is_trainable=True)
    batch = padded(24, 9, 17)
    assert_equal(loss_and_gradients(loaded, **batch), loss_and_gradients(model, **batch))


def test_evaluation_has_no_dropout(make_model):
    batch = padded(24, 9, 17)
    plain, model = make_model(lora_dropout=0.5).eval(), patch(make_model(lora_dropout=0.5))
    expected = float(plain(**batch).loss.detach())
    assert float(model(**batch).loss.detach()) != pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        assert float(model.eval()(**batch).loss) == pytest.approx(expected, rel=LOSS_ERROR)
    assert float(model.train()(**batch).loss.detach()) != pytest.approx(expected, rel=1e-5)


def test_without_labels_adapter_or_patch_the_model_is_the_plain_one(pair):
    batch, (plain, model) = padded(24, 9, 17), pair
    with plain.disable_adapter(), model.disable_adapter(), torch.no_grad():
        assert torch.equal(model(**batch).loss, plain(**batch).loss)
    labels, forward = batch.pop("labels"), model.forward
    assert torch.equal(model(**batch).logits, plain(**batch).logits)
    assert model(**batch, labels=labels).logits is None
    assert model.generate(input_ids=batch["input_ids"][:1], max_new_tokens=2, do_sample=False).shape == (1, 26)
    del model.forward
    assert model(**batch, labels=labels).logits is not None
    model.forward = forward


def test_a_copy_computes_with_its_own_adapters(pair):
    batch, (_, model) = padded(24, 9, 17), pair
    expected, other = loss_and_gradients(model, **batch), copy.deepcopy(model)
    with torch.no_grad():
        for name, each in other.named_parameters():
            if "lora_B" in name:
                each.zero_()
    assert_equal(loss_and_gradients(model, **batch), expected)
    assert float(other(**batch).loss.detach()) != pytest.approx(expected[0], rel=1e-3)


# In transformers' Trainer ---------------------------------------------------------------------------------------------


def train(modules: Any, model: Any, folder: Path, rows: list[dict[str, Any]], **arguments: Any) -> list[float]:
    """Train on the rows in order, three a micro-batch; return each micro-batch's loss."""
    losses: list[float] = []

    class Recorded(modules.transformers.Trainer):  # type: ignore[name-defined]
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            losses.append(float(loss.detach()))
            return loss

    fields = {
        "per_device_train_batch_size": 3,
        "max_steps": 3,
        "learning_rate": 4e-3,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    options = modules.transformers.TrainingArguments(output_dir=str(folder), **(fields | arguments))
    trainer = Recorded(
        model=model,
        args=options,
        train_dataset=rows,
        data_collator=lambda rows: {name: torch.stack([row[name] for row in rows]) for name in rows[0]},
    )
    trainer.train()
    return losses


def dataset(count: int) -> list[dict[str, torch.Tensor]]:
    lengths = (3 + torch.randperm(LENGTH - 3, generator=torch.Generator().manual_seed(2))).repeat(3)[:count].tolist()
    batch = padded(*lengths[:-1], LENGTH, seed=9)
    return [{name: each[row] for name, each in batch.items()} for row in range(count)]


def test_the_trainers_losses_are_those_of_the_recipe(modules, make_model, make_trial, folder_of, tmp_path):
    rows = dataset(9)
    patched = train(modules, patch(make_model()), tmp_path, rows)
    trial = make_trial(
        recipe="fast", model=str(folder_of("mistral")), max_seq_len=LENGTH, micro_batch_size=3, learning_rate=4e-3,
        lora_rank=4, lora_alpha=8, lora_dropout=0.0, lora_targets=ALL_LINEAR, optimizer="adamw_torch", seed=3,
        gradient_checkpointing=False,
    )  # fmt: skip
    step = recipes.build("fast", modules, trial, CPU, load_base(modules, trial, CPU))
    with_random_b(step.model)
    own = []
    for first in range(0, 9, 3):
        tensors = {name: torch.stack([row[name] for row in rows[first : first + 3]]) for name in rows[0]}
        own.append(float(step(iter([Batch(**tensors, samples=3, tokens=72, useful_tokens=72)]), 1)))
    assert patched == pytest.approx(own, rel=1e-6)
    assert max(patched) - min(patched) > 1e-2  # equal losses of an untrained model would prove nothing


def test_the_trainers_losses_accumulation_and_checkpoint_are_the_plain_models(modules, make_model, tmp_path):
    rows, arguments = dataset(12), {"max_steps": 2, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}
    plain = train(modules, make_model(), tmp_path / "plain", rows, **arguments)
    patched = train(
        modules, patch(make_model()), tmp_path / "patched", rows, **arguments, save_strategy="steps", save_steps=2
    )
    assert len(patched) == 4
    assert patched == pytest.approx(plain, rel=2e-5)
    files = {path.name for path in (tmp_path / "patched/checkpoint-2").iterdir()}
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sizes": {"attention_dropout": 0.1}}, "dropout of 0.1 inside attention"),
        ({"precision": "bf16"}, "the base is not NF4 with double quantization"),
        ({"use_dora": True}, "a variant of LoRA on q_proj and k_proj and v_proj"),
        (
            {"rank_pattern": {"k_proj": 8}},
            "adapters of several ranks, scalings or dropouts on q_proj and k_proj and v_proj",
        ),
        ({"target_modules": ["q_proj", "lm_head"]}, "an adapter on lm_head"),
    ],
    ids=str,
)
def test_an_unsupported_model_is_refused_with_the_recipes_reason(make_model, options, reason):
    with pytest.raises(UnsupportedModel, match=f"^{re.escape(reason)}$"):
        patch(make_model(**options))


def with_two_adapters(modules: Any, model: Any) -> None:
    model.add_adapter("other", modules.peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model.set_adapter("other")


CHANGES = {
    "merged": lambda _, model: model.merge_adapter(),
    "two adapters": with_two_adapters,
    "a trained norm": lambda _, model: model.get_base_model().model.norm.weight.requires_grad_(),
    "in bf16": lambda _, model: model.get_base_model().model.norm.to(torch.bfloat16),
}


@pytest.mark.filterwarnings("ignore:Merge lora module:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_refused(modules, make_model, change):
    model = make_model()
    CHANGES[change](modules, model)
    with pytest.raises(UnsupportedModel):
        patch(model)
    assert "_fast" not in vars(model)


def test_another_model_than_one_of_lora_is_refused(modules, make_model):
    base = make_model().unload()
    prefix = modules.peft.PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    for model in (base, modules.peft.get_peft_model(base, prefix)):
        with pytest.raises(UnsupportedModel):
            patch(model)


def test_int8_products_are_refused_without_a_gpu(pair):
    with pytest.raises(UnsupportedModel, match=r"^matmul int8: no GPU$"):
        patch(pair[0], matmul="int8")


@pytest.mark.filterwarnings("ignore:Merge lora module:UserWarning")
@pytest.mark.parametrize("change", ["merged", "two adapters"])
def test_adapters_changed_after_the_patch_are_refused(modules, make_model, change):
    model = patch(make_model())
    CHANGES[change](modules, model)
    with pytest.raises(UnsupportedModel):
        model(**padded(24, 9))


@pytest.mark.parametrize(
    ("argument", "batch"),
    [
        ("attention_mask", lambda: padded(24, 9) | {"attention_mask": padded(24, 9)["attention_mask"].flip(1)}),
        ("attention_mask", lambda: packed((5, 12)) | {"attention_mask": torch.ones(1, 17, dtype=torch.int64)}),
        ("labels", lambda: padded(24, 9) | {"labels": padded(24, 9)["input_ids"]}),
        ("labels", lambda: padded(24, 9) | {"labels": torch.zeros(2, 9, dtype=torch.int64)}),
        ("position_ids", lambda: packed((5, 12)) | {"position_ids": 3 + torch.arange(17)[None]}),
        ("position_ids", lambda: packed((5, 12)) | {"position_ids": torch.arange(9)[None]}),
        ("input_ids", lambda: {"labels": padded(24)["labels"]}),
        ("inputs_embeds", lambda: padded(24) | {"inputs_embeds": torch.zeros(1, 24, 64)}),
        ("return_dict", lambda: padded(24) | {"return_dict": False}),
    ],
)
def test_an_unsupported_batch_is_refused_by_the_arguments_name(pair, argument, batch):
    with pytest.raises(UnsupportedBatch) as caught:
        pair[1](**batch())
    assert caught.value.argument == argument


# The documented loop --------------------------------------------------------------------------------------------------


def test_the_code_in_the_readme_trains(make_model):
    text = (ROOT / "bench/kernels/README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {"peft_model": make_model(), "batches": [padded(24, 9, 17)] * 8}
    before = loss_and_gradients(names["peft_model"], **padded(24, 9, 17))[0]
    exec(code, names)  # noqa: S102
    assert loss_and_gradients(names["peft_model"], **padded(24, 9, 17))[0] < 0.99 * before
