"""Types that transformers registers: the record before a training, that of the loaded base, the merged model.

Every type in a thorough run, and by `python -m tests.benchmarks.every_type`.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bench import torch_stack
from bench.adapter import lora, merge
from bench.architectures.architecture import UnknownLayer
from bench.data.inputs import InputError
from bench.qlora.base_models import load_text_model, read_base
from bench.qlora.step import Placement, add_lora, load_base, probe
from bench.records.adapter import NF4, BaseRecord, HeldTensor
from tests.support import tiny_models, tiny_training
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.slow
PLACEMENT = Placement(device=torch.device("cpu"), compute_dtype=torch.bfloat16)
AT_LEAST = 136  # types of transformers 5.17 with a tiny model


def merge_fault(modules: torch_stack.Stack, model_type: str, folder: Path) -> str | None:
    """Return what of a type is not equal; None if all is. Raises ValueError for a type without a tiny model."""
    tiny_models.tiny_model(modules, model_type).save_pretrained(folder)
    trial = tiny_training.plan(folder, folder, recipe="stock")
    base = load_base(modules, trial, PLACEMENT)
    record, out = base.base_record, folder / "merged"
    try:
        planned: BaseRecord | None = probe(modules, trial)
    except (InputError, UnknownLayer):  # refused before a training
        planned = None
    if planned is not None and planned.tensors != record.tensors:
        return "the record before the training"
    adapted = [name for name, held in record.tensors.items() if held.kind == NF4 and len(held.shape) == 2][::3]
    pairs = {name: _random_pair(record.tensors[name]) for name in adapted}
    weights = lora.Lora(pairs=pairs, scale=2.0, sha256="")
    out.mkdir()
    files = merge.MergedFiles(folder, weights, record, NF4)
    for name, headers in files.shards().items():
        save_file({tensor: files.read(tensor).contiguous() for tensor in headers}, out / name, {"format": "pt"})
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    merged = load_text_model(modules, str(out), **modules.dtype_argument(torch.bfloat16))
    if {name: _plain(held, held) for name, held in record.tensors.items()} != {
        name: _plain(held, record.tensors.get(name)) for name, held in read_base(merged).tensors.items()
    }:
        return "the merged record"
    expected = dict(_tensors(base))
    for name, tensor in _tensors(merged):
        want = expected[name]
        if record.tensors[name].kind == NF4:
            want.quant_state.dtype = torch.float32
            want = modules.bitsandbytes.functional.dequantize_4bit(want.data, want.quant_state)
            want = weights.apply(name, want).to(torch.bfloat16)
            want = want.T if record.tensors[name].is_transposed else want
        if not torch.equal(tensor.to(want.dtype), want):
            return name
    if planned is not None and read_base(add_lora(modules, trial, base)).adapters != planned.adapters:
        return "the adapters before the training"
    return None


def _plain(held: HeldTensor, trained: HeldTensor | None) -> HeldTensor:
    """Return a tensor without what NF4 changes: a router that transformers keeps in float32 may be quantized, too."""
    return dataclasses.replace(held, kind=NF4) if trained is not None and trained.kind == NF4 else held


def _random_pair(held: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = held.shape[::-1] if held.is_transposed else held.shape
    return torch.randn(2, columns) * 0.1, torch.randn(rows, 2) * 0.1


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    names = read_base(model).tensors
    yield from ((name, model.get_parameter_or_buffer(name)) for name in names)


def test_the_merged_model_is_the_trained_one(modules, tmp_path):
    faults, equal = {}, 0
    for model_type in tiny_models.tested_types(modules):
        try:
            fault = merge_fault(modules, model_type, tmp_path / model_type)
        except tiny_models.NoTinyModel:
            continue
        except InputError as error:
            fault = str(error)
        if fault is None:
            equal += 1
        else:
            faults[model_type] = fault
    assert faults == {}
    assert equal >= (AT_LEAST if THOROUGH else len(tiny_models.UNLIKE))
