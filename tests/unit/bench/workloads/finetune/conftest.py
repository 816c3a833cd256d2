"""A model of two layers and its data, created once; see tests/support/tiny_training.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import tiny_training
from tests.support.tiny_training import Lab


@pytest.fixture(scope="session")
def tiny_inputs(modules, tmp_path_factory) -> tuple[Path, Path]:
    """(model folder, data file)."""
    root = tmp_path_factory.mktemp("tiny")
    folder = tiny_training.make_folder(modules, root / "models" / "tiny--tiny")
    return folder, tiny_training.make_data(root / "chats.jsonl")


@pytest.fixture
def lab(modules, tiny_inputs) -> Callable[..., Lab]:
    """Return a factory of a training's parts, with everything loaded."""
    return lambda **changes: Lab.create(modules, tiny_training.plan(*tiny_inputs, **changes)).load_inputs()
