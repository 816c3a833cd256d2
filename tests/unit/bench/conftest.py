"""Fixtures: a small model folder, data, and the torch stack."""

import pytest

from bench import torch_stack
from tests.support.small_inputs import data_file, make_record, model_folder, sharded_folder

__all__ = ["data_file", "make_record", "model_folder", "sharded_folder"]


@pytest.fixture(scope="session")
def modules() -> torch_stack.Stack:
    return torch_stack.load()


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit each generated answer to 8 tokens: the answers of a model of random weights rarely end."""
    monkeypatch.setattr("bench.workloads.finetune.answers.PromptCase.max_tokens", 8)
