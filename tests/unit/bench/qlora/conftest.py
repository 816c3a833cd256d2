"""Small random models of several shapes, made once for each module of tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import torch_stack

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "sliding_window": None,
}


@pytest.fixture(scope="module")
def folder_of(modules: torch_stack.Stack, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a factory of model folders by their type and changed sizes."""
    folders: dict[str, Path] = {}

    def make(model_type: str, **changes: Any) -> Path:
        key = f"{model_type}{changes}"
        if key not in folders:
            config = modules.transformers.AutoConfig.for_model(model_type, **(SIZES | changes))
            torch.manual_seed(1)
            folders[key] = tmp_path_factory.mktemp("model")
            modules.transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folders[key])
        return folders[key]

    return make
