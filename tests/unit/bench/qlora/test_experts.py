"""Experts in NF4 against transformers' own loop over the dequantized weights."""

import copy
import dataclasses
import importlib
import weakref
from types import SimpleNamespace

import pytest
import torch

from bench.adapter import lora, merge
from bench.data.inputs import InputError
from bench.data.trial_inputs import check_trial_model
from bench.qlora import experts
from bench.qlora.step import Placement, load_base
from bench.records.validation import ALL_LINEAR
from tests.support import tiny_models, tiny_training

CHOICES, TOKENS, WIDTH = 3, 20, 64
# By structure: transformers' class and where it is.
CLASSES = {
    "gate and up joined": "qwen3_moe.Qwen3MoeExperts",
    "transposed, interleaved, clamped, biases": "gpt_oss.GptOssExperts",
    "no gate": "nemotron_h.NemotronHExperts",
}


def by_value(names):
    return {name: value for value, group in names.items() for name in group.split()}


SIZES = by_value(
    {
        WIDTH: "hidden_size moe_intermediate_size intermediate_size",
        6: "num_experts num_local_experts n_routed_experts",
        "silu": "hidden_act mlp_hidden_act",
        None: "moe_latent_size",
        "eager": "_experts_implementation",
        1.702: "swiglu_alpha",
        7.0: "swiglu_limit",
    }
)
# A router that multiplies by a weight that bitsandbytes has packed, and a slow recurrence.
LEFT_OUT = {"longcat_flash", "kimi_linear"}


def random_experts(modules, path):
    module_name, _, class_name = path.partition(".")
    module = importlib.import_module(f"transformers.models.{module_name}.modeling_{module_name}")
    torch.manual_seed(5)
    layer = getattr(module, class_name)(SimpleNamespace(**SIZES))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3).requires_grad_(False)
    reference = copy.deepcopy(layer)
    for name in [name for name in layer._parameters if experts.is_expert_weight(layer, name)]:
        layer._parameters[name] = experts.quantize(modules, layer._parameters[name])
        reference._parameters[name] = torch.nn.Parameter(experts.dequantize(layer._parameters[name]))
    experts.install(layer)
    return layer, reference


def run(layer, ids):
    """Return output and gradients of hidden and scores, of random inputs."""
    torch.manual_seed(7)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    scores = torch.rand(TOKENS, CHOICES, requires_grad=True)
    out = layer(hidden, ids, scores)
    out.backward(torch.randn(out.shape))
    return out.detach(), hidden.grad, scores.grad


@pytest.mark.parametrize("path", CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize("used", [1 + CHOICES, 6], ids=["two without a token", "all experts"])
def test_output_and_gradients_are_those_of_a_loop(modules, path, used):
    layer, reference = random_experts(modules, path)
    assert experts._is_swiglu(layer) is ("Qwen3" in path)  # then by the kernel
    ids = torch.stack([torch.randperm(used)[:CHOICES] for _ in range(TOKENS)])
    ours, again, theirs = run(layer, ids), run(layer, ids), run(reference, ids)
    assert all(torch.equal(*pair) for pair in zip(ours, again, strict=True))
    for mine, expected in zip(ours, theirs, strict=True):
        assert float((mine - expected).norm() / expected.norm()) < 2e-6
    with torch.no_grad():
        assert torch.equal(layer(torch.zeros(0, WIDTH), ids[:0], torch.zeros(0, CHOICES)), torch.zeros(0, WIDTH))


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


def expert_types(modules):
    """List the types of tiny models that have experts in three dimensions."""
    for model_type in tiny_models.tested_types(modules):
        names = tiny_models.default_config(modules, model_type).to_dict()
        if model_type in LEFT_OUT or not any("expert" in name for name in names):
            continue
        try:
            with torch.device("meta"):
                model = tiny_models.tiny_model(modules, model_type)
        except tiny_models.NoTinyModel:
            continue
        if any(experts.is_expert_weight(module, name) for module in model.modules() for name in module._parameters):
            yield model_type


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
    """Return the relative differences of loss and gradient from a loop, and whether recomputing changed a bit."""
    save_tiny(modules, model_type, folder)
    model = load(modules, folder).requires_grad_(False)
    reference = copy.deepcopy(model)
    for module, names in experts.quantized_experts(reference):
        module.__class__ = module.unquantized
        for name in names:
            module._parameters[name] = torch.nn.Parameter(experts.dequantize(module._parameters[name]))
    reference.set_experts_implementation("eager")
    (loss, gradient), (expected, expected_gradient) = loss_and_gradient(model), loss_and_gradient(reference)
    error = float((gradient - expected_gradient).norm() / expected_gradient.norm())
    is_same = True
    if model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        is_same = torch.equal(loss_and_gradient(model)[1], gradient)
    return abs(loss / expected - 1), error, is_same


@pytest.mark.slow
def test_every_type_is_computed_as_by_its_own_loop(modules, tmp_path):
    differences = {name: compare_with_a_loop(modules, name, tmp_path / name) for name in expert_types(modules)}
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
