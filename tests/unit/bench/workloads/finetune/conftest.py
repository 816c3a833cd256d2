"""A model of two layers and its data, made once; see tests/support/tiny_training.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import tiny_training
from tests.support.tiny_training import Lab


@pytest.fixture(scope="session")
def tiny_inputs(modules, tmp_path_factory) -> tuple[Path, Path]:
    """(model folder, data file)."""
    place = tmp_path_factory.mktemp("tiny")
    folder = tiny_training.make_folder(modules, place / "models" / "tiny--tiny")
    return folder, tiny_training.make_data(place / "chats.jsonl")


@pytest.fixture
def lab(modules, tiny_inputs) -> Callable[..., Lab]:
    """A training's parts, with everything loaded."""
    return lambda **changes: Lab.of(modules, tiny_training.plan(*tiny_inputs, **changes)).warmed()
