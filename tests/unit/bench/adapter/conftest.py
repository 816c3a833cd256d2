"""Fixtures: a model of two layers in two shards, and an adapter of it with non-zero matrices."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from bench.qlora.step import Placement, load_base
from tests.support import tiny_training
from tests.support.tiny_training import Lab

HIDDEN, KEYS = 64, 32


@pytest.fixture(scope="session")
def inputs(modules, tmp_path_factory) -> tuple[Path, Path]:
    """(model folder, data file)."""
    root = tmp_path_factory.mktemp("adapter")
    folder = tiny_training.make_folder(modules, root / "models" / "tiny--tiny")
    model = modules.transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder, tiny_training.make_data(root / "chats.jsonl")


@pytest.fixture(scope="session")
def adapter(modules, inputs, tmp_path_factory) -> Path:
    """Adapter folder in the format of a training, with random A and B."""
    torch, folder = modules.torch, tmp_path_factory.mktemp("trained") / "adapter"
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(5)
    tensors = {}
    for layer in range(2):
        for name, out in (("q", HIDDEN), ("k", KEYS), ("v", KEYS), ("o", HIDDEN)):
            start = f"base_model.model.model.layers.{layer}.self_attn.{name}_proj.lora_"
            tensors[f"{start}A.weight"] = torch.randn(4, HIDDEN, generator=random) * 0.1
            tensors[f"{start}B.weight"] = torch.randn(out, 4, generator=random) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    base = load_base(
        modules, tiny_training.plan(*inputs), Placement(device=torch.device("cpu"), compute_dtype=torch.float32)
    )
    names = [name.removeprefix("base_model.model.").partition(".lora_")[0] for name in tensors]
    dataclasses.replace(base.base_record, adapters=sorted(set(names))).write(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((inputs[0] / name).read_bytes())
    return folder


@pytest.fixture
def lab(modules, inputs) -> Callable[..., Lab]:
    return lambda **changes: Lab.create(modules, tiny_training.plan(*inputs, **changes))


@pytest.fixture
def merge_fields(inputs, adapter, tmp_path) -> Callable[..., dict[str, Any]]:
    """Fields of a MergeRequest, with changes."""
    fields = {"model": str(inputs[0]), "adapter": str(adapter), "out": str(tmp_path / "merged")}
    return lambda **changes: fields | changes
