"""Experts in NF4 against transformers' own loop over the dequantized weights."""

import contextlib
import copy
import dataclasses
import weakref

import pytest
import torch

from bench.adapter import lora, merge
from bench.data.inputs import InputError
from bench.data.trial_inputs import check_trial_model
from bench.qlora import experts
from bench.qlora.step import Placement, load_base
from bench.records.validation import ALL_LINEAR
from tests.support import tiny_models, tiny_training

# A router that multiplies by a weight that bitsandbytes has packed, and a slow recurrence.
LEFT_OUT = {"longcat_flash", "kimi_linear"}
# By type, whether the kernel computes the activation: transposed and clamped, or without a gate, it is transformers'.
IS_SWIGLU = {"mixtral": True, "gpt_oss": False, "nemotron_h": False}


def test_loading_keeps_one_weight_in_16_bits_at_a_time(modules, tmp_path, monkeypatch):
    save_tiny(modules, "qwen3_moe", tmp_path)
    alive, seen = [], []
    quantize = experts.quantize

    def watch(stack, weight):
        seen.append(len([reference for reference in alive if reference() is not None]))
        alive.append(weakref.ref(weight))
        return quantize(stack, weight)

    monkeypatch.setattr(experts, "quantize", watch)
    model = load(modules, tmp_path)
    assert seen == [0] * 4
    assert sum(len(names) for _, names in experts.quantized_experts(model)) == 4


def save_tiny(modules, model_type, folder):
    model = tiny_models.tiny_model(modules, model_type, use_cache=False).float()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)


def load(modules, folder):
    experts.use_nf4(modules)
    quantization = modules.transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    return modules.transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantization, device_map={"": "cpu"}, dtype=torch.float32
    )


def loss_and_gradient(model):
    table = model.get_input_embeddings().weight.requires_grad_()
    table.grad = None
    ids = torch.randint(3, 250, (1, 16), generator=torch.Generator().manual_seed(3))
    torch.manual_seed(4)  # some routers add noise
    loss = model.train()(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.item(), table.grad.clone()


def compare_with_a_loop(modules, model_type, folder):
    """Return the relative differences of loss and gradient from a loop, and whether recomputing changed a bit.

    None for a model without experts in three dimensions.
    """
    save_tiny(modules, model_type, folder)
    model = load(modules, folder).requires_grad_(False)
    if not list(experts.quantized_experts(model)):
        return None
    reference = copy.deepcopy(model)
    for module, names in experts.quantized_experts(reference):
        module.__class__ = module.unquantized
        for name in names:
            module._parameters[name] = torch.nn.Parameter(experts.dequantize(module._parameters[name]))
    reference.set_experts_implementation("eager")
    (loss, gradient), (expected, expected_gradient) = loss_and_gradient(model), loss_and_gradient(reference)
    if model_type in IS_SWIGLU:
        assert {experts._is_swiglu(module) for module, _ in experts.quantized_experts(model)} == {IS_SWIGLU[model_type]}
    error = float((gradient - expected_gradient).norm() / expected_gradient.norm())
    is_same = True
    if model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        is_same = torch.equal(loss_and_gradient(model)[1], gradient)
    return abs(loss / expected - 1), error, is_same


@pytest.mark.slow
def test_every_type_is_computed_as_by_its_own_loop(modules, tmp_path):
    differences = {}
    for name in tiny_models.tested_types(modules):
        config = tiny_models.default_config(modules, name).to_dict()
        if name not in LEFT_OUT and any("expert" in key for key in config):
            with contextlib.suppress(tiny_models.NoTinyModel):
                if (row := compare_with_a_loop(modules, name, tmp_path / name)) is not None:
                    differences[name] = row
    wrong = {name: row for name, row in differences.items() if not (row[0] < 1e-6 and row[1] < 2e-6 and row[2])}
    assert len(differences) >= 14
    assert not wrong


def test_experts_in_mxfp4_are_loaded_and_merged_as_their_16_bit_values(modules, tmp_path):
    tiny_models.tiny_model(modules, "gpt_oss").save_pretrained(tmp_path / "model")
    tiny_models.as_mxfp4(tmp_path / "model")
    trial = tiny_training.plan(tmp_path / "model", tmp_path, recipe="stock")
    cpu = Placement(device=torch.device("cpu"), compute_dtype=torch.bfloat16)
    plain = load_base(modules, dataclasses.replace(trial, base_precision="bf16"), cpu)
    ours, weights = load_base(modules, trial, cpu), dict(plain.named_parameters())
    record, none = ours.base_record, lora.Lora(pairs={}, scale=1.0, sha256="")
    merged = {base: merge.MergedFiles(tmp_path / "model", none, record, base) for base in ("bf16", "nf4")}
    names = [name for name, held in record.tensors.items() if len(held.shape) == 3]
    assert len(names) == 4
    assert all(files.shards()["model.safetensors"].keys() == weights.keys() for files in merged.values())
    for name in names:
        in_nf4 = experts.dequantize(ours.get_parameter(name))
        assert torch.equal(in_nf4, experts.dequantize(experts.quantize(modules, weights[name].data)))
        assert torch.equal(merged["nf4"].read(name), in_nf4)
        assert torch.equal(merged["bf16"].read(name), weights[name])


def test_adapters_on_experts_are_refused_with_the_reason(modules, tmp_path):
    folder = tiny_training.make_folder(modules, tmp_path / "model", model_type="mixtral", num_local_experts=2)
    trial = tiny_training.plan(folder, tiny_training.make_data(tmp_path / "chats.jsonl"), lora_targets=ALL_LINEAR)
    with pytest.raises(InputError, match=r"^lora_targets: .* 'gate_proj': experts have no adapters"):
        check_trial_model(trial)
