"""The record of a base: which of a loaded model's tensors are quantized, in which dtype the others are."""

import dataclasses
import math

import pytest
import torch

from bench.architectures.architecture import has_all_weights
from bench.architectures.unregistered import BASE_RECORD
from bench.data.inputs import InputError
from bench.data.model_folder import read_config
from bench.predict import flops, memory
from bench.qlora.base_models import Skeleton, read_base
from bench.qlora.step import Placement, add_lora, load_base, probe
from bench.records.adapter import NF4, BaseRecord
from bench.records.validation import ALL_LINEAR
from tests.support import families, tiny_models, tiny_training

pytestmark = pytest.mark.slow


def test_a_record_names_each_tensor_as_the_loaded_model_holds_it(modules, tmp_path):
    tiny_models.tiny_model(modules, "gpt2").save_pretrained(tmp_path / "gpt2")
    trial = tiny_training.plan(tmp_path / "gpt2", tmp_path, recipe="stock")
    base = load_base(modules, trial, Placement(device=torch.device("cpu"), compute_dtype=torch.bfloat16))
    record = read_base(base)
    kinds = {name.removeprefix("transformer.h.0."): dataclasses.astuple(held) for name, held in record.tensors.items()}
    assert kinds["attn.c_attn.weight"] == ("nf4", [64, 192], True)
    assert kinds["attn.c_attn.bias"] == ("bfloat16", [192], False)
    assert "lm_head.weight" not in kinds  # tied
    adapted = read_base(add_lora(modules, trial, base))
    assert adapted.tensors == record.tensors
    assert adapted.adapters[:2] == ["transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj"]
    adapted.write(tmp_path)
    assert BaseRecord.read(tmp_path / BaseRecord.FILE) == adapted


def test_what_transformers_cannot_train_is_refused_before_the_training(modules, tmp_path):
    tiny_models.tiny_model(modules, "ctrl").save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"does not support \w+ checkpointing"):
        probe(modules, tiny_training.plan(tmp_path, tmp_path, recipe="stock"))
    trial = tiny_training.plan(tmp_path, tmp_path, recipe="stock", gradient_checkpointing=False)
    record = probe(modules, trial)
    assert [record.tensors[f"{name}.weight"].shape for name in record.adapters] == [[64, 64]] * 8


@pytest.mark.parametrize(("model_type", "changes", "message"), [
    ("roc_bert", {}, "adds in place"),
    ("xmod", {"default_language": None}, "no default_language"),
])  # fmt: skip
def test_a_type_whose_first_step_would_fail_is_refused_before_the_training(
    modules, tmp_path, model_type, changes, message
):
    tiny_models.tiny_model(modules, model_type, **changes).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message):
        probe(modules, tiny_training.plan(tmp_path, tmp_path, recipe="stock"))


@pytest.mark.parametrize("case", [each for each in families.families() if has_all_weights(each.values[0]["input"])])
def test_the_arithmetic_of_declared_families_counts_what_the_record_says(modules, tmp_path, case):
    folder = families.write_model(modules, tmp_path / "model", **case["input"])
    config, tensors = read_config(folder), read_base(Skeleton(modules, folder, nf4=True).model).tensors
    assert sum(math.prod(held.shape) for held in tensors.values() if held.kind == NF4) == flops.block_weights(config)
    matrices = [held for held in tensors.values() if held.kind != NF4 and len(held.shape) == 2]
    assert {math.prod(held.shape) for held in matrices} == {flops.head_weights(config)}
    trial = tiny_training.plan(folder, tmp_path, recipe="stock", lora_targets=ALL_LINEAR)
    recorded = config | {BASE_RECORD: BaseRecord(tensors=tensors, adapters=[])}
    assert flops.trial_flops(recorded, trial) == flops.trial_flops(config, trial)
    for predict in (memory.peak_bytes, memory.base_bytes, memory.adapter_bytes):
        assert predict(recorded, trial) == pytest.approx(predict(config, trial), rel=0.02)
