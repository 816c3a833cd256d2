"""The record of a base: which of a loaded model's tensors are quantized, in which dtype the others are."""

import dataclasses

import torch

from bench.qlora.base import read_base
from bench.qlora.step import Placement, add_lora, load_base
from bench.records.adapter import BaseRecord
from tests.support import tiny_models, tiny_training


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
