"""The worker's forecast names the recipe that will be built."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.predict.throughput import forecast
from bench.qlora.step import sized_config
from bench.records.paths import SUMS_FILE


@pytest.mark.parametrize(
    ("config", "changes", "recipe"),
    [
        ({}, {}, "fast"),
        ({}, {"recipe": "stock", "base_precision": "bf16"}, "stock"),
        (
            {},
            {"held_layers": 1, "base_precision": "bf16"},
            "stock (fast is not supported: a base in bf16, not NF4; without",
        ),
        ({"attention_dropout": 0.1}, {}, "stock (fast is not supported: dropout of 0.1 inside attention)"),
    ],
)
def test_the_forecast_names_a_fallback_and_its_reason(
    config: dict[str, Any], changes: dict[str, Any], recipe: str, tiny_model: Path, make_trial: Any, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model, ignore=shutil.ignore_patterns(SUMS_FILE))
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    trial = make_trial(**({"recipe": "fast", "model": str(model)} | changes))
    assert forecast(sized_config(trial), "", trial).recipe.startswith(recipe)
