"""A dummy architecture, added by nothing but its registration, and the registered families: trained, predicted,
checked, merged, decoded.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.adapter import check, merge
from bench.architectures import architecture, families
from bench.architectures.architecture import register
from bench.data import trial_inputs
from bench.data.inputs import InputError
from bench.data.model_folder import check_model, read_config
from bench.data.trial_inputs import check_trial
from bench.harness.termination import StopSignals
from bench.machine import fingerprint, nvml
from bench.predict import chips, flops, memory, throughput
from bench.qlora.step import load_base, sized_config
from bench.records.atomic_files import sha256_of
from bench.records.validation import ALL_LINEAR
from bench.workloads import training
from bench.workloads.finetune import checkpoint
from tests.support import tiny_models, tiny_training
from tests.support.paths import ROOT
from tests.support.small_inputs import edit_json
from tests.support.thorough import only_thorough
from tests.support.tiny_training import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("short_answers"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]
TINY_TOKENS = {"pad_token_id": 0, "eos_token_id": 1}


@pytest.fixture(scope="module")
def folder(modules, tmp_path_factory) -> Iterator[Path]:
    """Model folder of a type that is registered here and with transformers: Llama under another name."""
    transformers = modules.transformers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "_BY_MODEL_TYPE", dict(architecture._BY_MODEL_TYPE))
        register(dataclasses.replace(families.LLAMA, model_types=("dummy",)))
        config = type("Config", (transformers.LlamaConfig,), {"model_type": "dummy"})
        transformers.AutoConfig.register("dummy", config, exist_ok=True)
        model = type("Model", (transformers.LlamaForCausalLM,), {"config_class": config})
        transformers.AutoModelForCausalLM.register(config, model, exist_ok=True)
        path = tmp_path_factory.mktemp("dummy") / "tiny--dummy"
        yield tiny_training.make_folder(modules, path, model_type="dummy", **TINY_TOKENS)


def losses(lab: Lab) -> list[float]:
    return [line["step"]["loss"] for line in lab.reports if "step" in line]


def test_a_registered_architecture_is_checked_predicted_and_trained(modules, folder, tmp_path, monkeypatch):
    config, data = read_config(folder), tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)
    assert check_model(folder).parameters > flops.block_weights(config)
    fields = {"lora_targets": ALL_LINEAR, "lora_dropout": 0.0, "training": {"max_steps": 3}}
    trained = {
        recipe: Lab.create(modules, tiny_training.plan(folder, data, recipe=recipe, **fields)).load_inputs()
        for recipe in ("stock", "fast")
    }
    for recipe, each in trained.items():
        assert each.train(tmp_path / recipe) == "finished"
    assert losses(trained["fast"]) == pytest.approx(losses(trained["stock"]), rel=1e-4)

    trial = trained["fast"].trial
    monkeypatch.setattr(nvml, "visible_gpus", list)
    assert throughput.forecast(config, "", trial).recipe == "fast"
    assert flops.trial_flops(config, trial).forward > 2 * flops.block_weights(config)
    assert memory.peak_bytes(config, trial) == memory.peak_bytes(config | {"model_type": "llama"}, trial)


def test_a_trial_of_a_registered_architecture_is_measured(folder, tmp_path, make_trial, make_record):
    data = tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)
    sizes = {"max_seq_len": 48, "micro_batch_size": 2, "warmup_steps": 1, "measured_steps": 3}
    trial = make_trial(model=str(folder), data=str(data), recipe="fast", **sizes)
    record = make_record(trial)
    inputs = check_trial(trial)
    record.fingerprint |= {"cpu_model": "a test's", **fingerprint.input_facts(trial, *inputs[:2])}
    training.measure(record, inputs, StopSignals())
    assert (record.steps_done, record.fingerprint["recipe"]) == (4, "fast")
    (mfu,) = (item for item in record.measurements if item.name == "mfu_percent")
    assert mfu.context["flop_per_token"] == flops.trial_flops(read_config(folder), trial).model


MIXTURE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64} | {
    "head_dim": 16
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"patch_size": 14, "image_size": 28}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "ministral3": {"head_dim": 16},
    "phi3": {},
    "gemma2": {"head_dim": 16, "sliding_window": 6},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6},
    "olmo2": {},
    "gpt_neox": {},
    "qwen3_moe": MIXTURE,
    "gpt_oss": MIXTURE,  # in MXFP4
}
# Models that take images too, with the type of their text part.
WITH_IMAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mistral3": ("ministral3", "Mistral3ForConditionalGeneration", {"model_type": "pixtral", "head_dim": 16}),
    "gemma3": ("gemma3_text", "Gemma3ForConditionalGeneration", {}),
}


def make_family(modules: Any, folder: Path, family: str) -> Path:
    """Make the model folder of a family."""
    if family in UNPACKED_TYPES and family not in FAMILIES:
        tiny_training.make_folder(modules, folder)  # its tokenizer
        tiny_models.tiny_model(modules, family).save_pretrained(folder)
        return folder
    text, name, vision = WITH_IMAGES.get(family, (family, "", {}))
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    tiny_training.make_folder(modules, folder, model_type=text, **tokens, **FAMILIES[text])
    if family in WITH_IMAGES:
        parts = {"text_config": json.loads((folder / "config.json").read_text()), "vision_config": VISION | vision}
        tied = {"tie_word_embeddings": family == "gemma3"}
        config = modules.transformers.AutoConfig.for_model(family, **parts, **tied)
        modules.torch.manual_seed(1)
        getattr(modules.transformers, name)(config).save_pretrained(folder)
    if family == "gpt_oss":
        tiny_models.as_mxfp4(folder)
    return folder


UNPACKED_TYPES = (
    *("afmoe", "bamba", "bloom", "falcon", "falcon_h1", "gemma3n_text", "gemma4_text", "gpt_oss", "granitemoehybrid"),
    *("jamba", "lfm2", "llama4_text", "minimax", "mpt", "nemotron_h", "olmo_hybrid", "opt"),
    *("qwen3_5_text", "qwen3_next"),
)
# Joined layers; names and blocks of an unregistered type; a text part; experts by `fast` and by `stock`, in MXFP4;
# state spaces, and a linear attention.
UNLIKE_FAMILIES = ("phi3", "gpt_neox", "mistral3", "qwen3_moe", "gpt_oss", "falcon_h1", "qwen3_next")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in UNLIKE_FAMILIES else only_thorough)
        for name in dict.fromkeys((*FAMILIES, *WITH_IMAGES, *UNPACKED_TYPES))
    ],
)
def test_a_family_is_checked_trained_resumed_merged_and_decoded(modules, tmp_path, family):
    folder = make_family(modules, tmp_path / family, family)
    data = tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)
    fields = {"lora_dropout": 0.1, "micro_batch_size": 3, "training": {"max_steps": 3}}
    if family in (*FAMILIES, *WITH_IMAGES) and FAMILIES.get(family) is not MIXTURE:  # experts have no adapters
        fields |= {"lora_targets": ALL_LINEAR}
    lab = Lab.create(modules, tiny_training.plan(folder, data, **fields)).load_inputs()
    assert lab.train(tmp_path / "out") == "finished"
    stops = iter((False, True))
    assert lab.train(tmp_path / "stopped", stop_requested=lambda: next(stops, True)) == "stopped"
    assert lab.train(tmp_path / "stopped") == "finished"
    adapter = tmp_path / "out" / "adapter"
    assert lab.material.separation.is_packed is (family not in UNPACKED_TYPES)
    digests = {sha256_of(tmp_path / name / "adapter" / checkpoint.ADAPTER) for name in ("out", "stopped")}
    assert len(digests) == 1

    trial = lab.trial
    config = sized_config(trial)
    is_fast = family in ("qwen2", "qwen3", "ministral3", "phi3", "mistral3", "qwen3_moe")
    assert (trial_inputs.unsupported_reason(config, trial, capability=None) is None) is is_fast
    assert memory.peak_bytes(config, trial) > 0
    assert flops.trial_flops(config, trial).forward > 0

    request = merge.MergeRequest(model=str(folder), adapter=str(adapter), out=str(tmp_path / "nf4"), base="nf4")
    merge.merge(request, lambda _: None)
    assert json.loads((tmp_path / "nf4" / "config.json").read_text())["model_type"] == family
    count = int(family != "llama4_text")  # transformers 5.17 cannot generate with it
    check_request = check.CheckRequest(trial=trial, adapter=str(adapter), merged=str(tmp_path / "nf4"), answers=count)
    forms = {form.name: form.loss for form in check.Checker(check_request, lambda _: None, None).run().forms}
    assert forms["folder"] == pytest.approx(forms["merged-nf4"], abs=1e-6)
    assert forms["merged-nf4"] == pytest.approx(forms["trained"], abs=0.02)


def test_a_model_that_transformers_does_not_know_is_refused_before_the_first_step(modules, tmp_path):
    folder = tiny_training.make_folder(modules, tmp_path / "model", model_type="olmo2")
    edit_json(folder / "config.json", model_type="unheard_of")
    data = tiny_training.make_data(tmp_path / "chats.jsonl", lines=24)
    with pytest.raises(InputError, match=r"config\.json: transformers "):
        Lab.create(modules, tiny_training.plan(folder, data)).load_inputs()


def test_the_table_of_the_guide_names_the_types_that_are_not_packed():
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    assert f": {', '.join(UNPACKED_TYPES)}, any other |" in text


def test_the_loss_has_no_part_for_the_balance_of_experts(modules, tmp_path):
    tiny_models.tiny_model(modules, "qwen3_moe", output_router_logits=True).save_pretrained(tmp_path)
    lab = Lab.create(modules, tiny_training.plan(tmp_path, tmp_path, recipe="stock"))
    base = load_base(modules, lab.trial, lab.placement)
    ids = modules.torch.arange(3, 23)[None]
    answer = base(input_ids=ids, labels=ids)
    expected = modules.torch.nn.functional.cross_entropy(answer.logits[0, :-1].float(), ids[0, 1:])
    assert float(answer.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_memory_and_flop_of_a_model_with_experts_count_those_of_a_token(modules, tmp_path, monkeypatch):
    folder = tiny_training.make_folder(modules, tmp_path / "model", model_type="mixtral", num_local_experts=4)
    trial = tiny_training.plan(folder, tiny_training.make_data(tmp_path / "chats.jsonl", lines=24))
    config = sized_config(trial)
    attention, experts = 2 * (2 * 64 * 64 + 2 * 64 * 32), 2 * 4 * 3 * 64 * 128
    assert flops.block_weights(config) == attention + experts
    assert flops.block_weights(config, active=True) == attention + experts // 2
    gpu = SimpleNamespace(
        name="NVIDIA A10",
        compute_capability=(8, 6),
        usable_memory_bytes=22 << 30,
        read=lambda: SimpleNamespace(memory_total_bytes=24 << 30),
    )
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [gpu])
    forecast = throughput.forecast(config, "", trial)
    assert (forecast.recipe, forecast.can_use_int8) == ("fast", False)
    assert forecast.peak_bytes == memory.peak_bytes(config, trial)
    assert chips.forecast_chips(config, trial, "NVIDIA A10")
