"""Small random models of several shapes, made once for each module of tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import torch_stack
from tests.support.families import write_model


@pytest.fixture(scope="module")
def folder_of(modules: torch_stack.Stack, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a factory of model folders by their type and changed sizes."""
    folders: dict[str, Path] = {}

    def make(model_type: str, **changes: Any) -> Path:
        key = f"{model_type}{changes}"
        if key not in folders:
            folders[key] = write_model(modules, tmp_path_factory.mktemp("model"), model_type, **changes)
        return folders[key]

    return make
