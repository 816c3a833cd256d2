"""Fixtures: a model of two layers in two shards, and an adapter of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.records.validation import ATTENTION_PROJECTIONS
from tests.support import tiny_training
from tests.support.tiny_training import Lab

ADAPTED = {"lora_targets": ATTENTION_PROJECTIONS, "lora_alpha": 8, "lora_dropout": 0.0}


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
    """Adapter folder of a training."""
    trial = tiny_training.plan(*inputs, **ADAPTED, training={"max_steps": 2})
    folder = tmp_path_factory.mktemp("trained")
    Lab.create(modules, trial).load_inputs().train(folder)
    return folder / "adapter"


@pytest.fixture
def lab(modules, inputs) -> Callable[..., Lab]:
    return lambda **changes: Lab.create(modules, tiny_training.plan(*inputs, **(ADAPTED | changes)))


@pytest.fixture
def merge_fields(inputs, adapter, tmp_path) -> Callable[..., dict[str, Any]]:
    """Fields of a MergeRequest, with changes."""
    fields = {"model": str(inputs[0]), "adapter": str(adapter), "out": str(tmp_path / "merged")}
    return lambda **changes: fields | changes
