"""Dummy architectures, added by nothing but their registration, and the registered families: trained, predicted,
checked, merged, decoded.

`plain` is Llama under another model type, `refused` the same with arithmetic that only transformers knows, `joined` has
q k v and gate up in one layer each, as Phi3.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.adapter import check, merge
from bench.architectures import architecture, families
from bench.architectures.architecture import Architecture, Feature, LinearLayer, register
from bench.data import trial_inputs
from bench.data.model_folder import check_model, read_config
from bench.data.trial_inputs import check_trial
from bench.harness.termination import StopSignals
from bench.machine import fingerprint, nvml
from bench.predict import flops, memory, throughput
from bench.records.validation import ALL_LINEAR
from bench.workloads import training
from bench.workloads.decoding import DefaultPath, FastPath, prepare_model
from tests.support import tiny_training
from tests.support.tiny_training import Lab

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
JOINED = (
    LinearLayer("self_attn.qkv_proj", "qkv", ("query", "key", "key")),
    LinearLayer("self_attn.o_proj", "out", ("hidden",)),
    LinearLayer("mlp.gate_up_proj", "gate_up", ("inner", "inner")),
    LinearLayer("mlp.down_proj", "down", ("hidden",)),
)
REASON = "arithmetic that only transformers knows"
DUMMIES: dict[str, tuple[Architecture, str]] = {
    "plain": (dataclasses.replace(families.LLAMA, model_types=("plain",)), "Llama"),
    "refused": (
        dataclasses.replace(families.LLAMA, model_types=("refused",), features=lambda _config: {Feature.OTHER: REASON}),
        "Llama",
    ),
    "joined": (dataclasses.replace(families.LLAMA, model_types=("joined",), linear_layers=JOINED), "Phi3"),
}


@pytest.fixture(scope="module")
def folders(modules, tmp_path_factory) -> Iterator[dict[str, Path]]:
    """Model folders by model type; the types are registered here and with transformers."""
    transformers, root = modules.transformers, tmp_path_factory.mktemp("dummies")
    paths = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "_BY_MODEL_TYPE", dict(architecture._BY_MODEL_TYPE))
        for name, (dummy, family) in DUMMIES.items():
            register(dummy)
            config = type("Config", (getattr(transformers, f"{family}Config"),), {"model_type": name})
            bases = (getattr(transformers, f"{family}ForCausalLM"),)
            transformers.AutoConfig.register(name, config, exist_ok=True)
            model = type("Model", bases, {"config_class": config})
            transformers.AutoModelForCausalLM.register(config, model, exist_ok=True)
            tokens = {"pad_token_id": 0, "eos_token_id": 1}
            paths[name] = tiny_training.make_folder(modules, root / f"tiny--{name}", model_type=name, **tokens)
        yield paths


@pytest.fixture
def lab(modules, folders, tmp_path) -> Callable[..., Lab]:
    """Return a factory of a training of a dummy with adapters on all its linear layers."""
    data = tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)

    def make(name: str, **changes: Any) -> Lab:
        fields = {"lora_targets": ALL_LINEAR, "lora_dropout": 0.0, "training": {"max_steps": 3}} | changes
        return Lab.create(modules, tiny_training.plan(folders[name], data, **fields)).load_inputs()

    return make


def losses(lab: Lab) -> list[float]:
    return [line["step"]["loss"] for line in lab.reports if "step" in line]


@pytest.mark.parametrize("name", ["refused", "joined"])
def test_a_registered_architecture_is_checked_predicted_trained_and_merged(folders, lab, tmp_path, name, monkeypatch):
    folder, config = folders[name], read_config(folders[name])
    assert check_model(folder).parameters > flops.block_weights(config)
    trained = {recipe: lab(name, recipe=recipe) for recipe in ("stock", "fast")}
    for recipe, each in trained.items():
        assert each.train(tmp_path / recipe) == "finished"
    assert losses(trained["fast"]) == pytest.approx(losses(trained["stock"]), rel=1e-4)

    trial = trained["fast"].trial
    reason = REASON if name == "refused" else None
    assert trial_inputs.unsupported_reason(config, trial, capability=None) == reason
    monkeypatch.setattr(nvml, "visible_gpus", list)
    assert throughput.forecast(trial).recipe == trial_inputs.built_recipe(trial, reason)
    # Llama's block has the same products, joined or not.
    same = config | {"model_type": "llama"}
    assert flops.block_weights(config) == flops.block_weights(same)
    assert flops.trial_flops(config, trial).forward > 2 * flops.block_weights(config)
    attention = dataclasses.replace(trial, lora_targets=("o_proj",))
    assert flops.trial_flops(config, attention) == flops.trial_flops(same, attention)
    assert memory.peak_bytes(config, attention) == memory.peak_bytes(same, attention)
    stock = trial_inputs.as_stock(attention)  # it copies a joined layer whole
    assert (memory.peak_bytes(config, stock) > memory.peak_bytes(same, stock)) is (name == "joined")

    adapter = tmp_path / "fast" / "adapter"
    request = merge.MergeRequest(model=str(folder), adapter=str(adapter), out=str(tmp_path / "merged"), base="nf4")
    merge.merge(request, lambda _: None)
    check_request = check.CheckRequest(trial=trial, adapter=str(adapter), merged=request.out, answers=1)
    forms = {form.name: form.loss for form in check.Checker(check_request, lambda _: None, None).run().forms}
    assert forms["folder"] == pytest.approx(forms["merged-nf4"], abs=1e-6)
    assert forms["merged-nf4"] == pytest.approx(forms["trained"], abs=0.02)
    assert abs(forms["bf16"] - forms["trained"]) > 1e-5, "NF4 is another base"


@pytest.mark.parametrize("recipe", ["stock", "fast"])
def test_a_trial_of_a_registered_architecture_is_measured(folders, tmp_path, make_trial, make_record, recipe):
    data = tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)
    sizes = {"max_seq_len": 48, "micro_batch_size": 2, "warmup_steps": 1, "measured_steps": 3}
    trial = make_trial(model=str(folders["plain"]), data=str(data), recipe=recipe, **sizes)
    record = make_record(trial)
    inputs = check_trial(trial)
    record.fingerprint |= {"cpu_model": "a test's", **fingerprint.input_facts(trial, *inputs[:2])}
    training.measure(record, inputs, StopSignals())
    assert (record.steps_done, record.fingerprint["recipe"]) == (4, recipe)
    (mfu,) = (item for item in record.measurements if item.name == "mfu_percent")
    assert mfu.context["flop_per_token"] == flops.trial_flops(read_config(folders["plain"]), trial).model


@pytest.mark.parametrize("name", DUMMIES)
def test_both_decoding_paths_give_the_same_tokens(modules, folders, name):
    torch = modules.torch
    model = modules.transformers.AutoModelForCausalLM.from_pretrained(folders[name])
    prepare_model(modules, model)
    prompts = torch.randint(2, 250, (2, 9), generator=torch.Generator().manual_seed(2))
    placement = Lab.create(modules, None).placement  # type: ignore[arg-type]
    answers = [
        path.generate().tokens
        for path in (
            DefaultPath(modules, model, placement, prompts, 6),
            FastPath(modules, model, placement, prompts, 6, capture=False),
        )
    ]
    assert torch.equal(*answers)
    not_fused = FastPath(modules, model, placement, prompts, 6, capture=False).not_fused_reason
    assert (not_fused == REASON) is (name == "refused")


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "ministral3": {"head_dim": 16},
    "phi3": {},
    "gemma2": {"head_dim": 16, "sliding_window": 6},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_checked_trained_merged_and_decoded(modules, tmp_path, family):
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    folder = tiny_training.make_folder(modules, tmp_path / family, model_type=family, **tokens, **FAMILIES[family])
    data = tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)
    fields = {"lora_targets": ALL_LINEAR, "lora_dropout": 0.0, "training": {"max_steps": 3}}
    lab = Lab.create(modules, tiny_training.plan(folder, data, **fields)).load_inputs()
    assert lab.train(tmp_path / "out") == "finished"
    config, trial = read_config(folder), lab.trial
    assert (trial_inputs.unsupported_reason(config, trial, capability=None) is None) is not family.startswith("gemma")
    assert memory.peak_bytes(config, trial) > 0
    assert flops.trial_flops(config, trial).forward > 2 * flops.block_weights(config)

    adapter = tmp_path / "out" / "adapter"
    for base in ("nf4", "bf16"):
        request = merge.MergeRequest(model=str(folder), adapter=str(adapter), out=str(tmp_path / base), base=base)
        merge.merge(request, lambda _: None)
    check_request = check.CheckRequest(trial=trial, adapter=str(adapter), merged=str(tmp_path / "nf4"), answers=1)
    forms = {form.name: form.loss for form in check.Checker(check_request, lambda _: None, None).run().forms}
    assert forms["folder"] == pytest.approx(forms["merged-nf4"], abs=1e-6)
    assert forms["merged-nf4"] == pytest.approx(forms["trained"], abs=0.02)

    model = modules.transformers.AutoModelForCausalLM.from_pretrained(folder)
    prepare_model(modules, model)
    prompts = modules.torch.randint(2, 250, (2, 9), generator=modules.torch.Generator().manual_seed(2))
    paths = [
        DefaultPath(modules, model, lab.placement, prompts, 6),
        FastPath(modules, model, lab.placement, prompts, 6, capture=False),
    ]
    assert modules.torch.equal(*(path.generate().tokens for path in paths))
