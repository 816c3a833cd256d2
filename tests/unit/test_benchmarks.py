"""Tests of the benchmarks: imports, and the random model that they use."""

import importlib
import json
import math
from pathlib import Path

import pytest

from bench.data import demo
from bench.data.model_folder import check_model
from bench.records.validation import ALL_LINEAR
from tests import benchmarks, model_shapes
from tests.benchmarks import fast_step
from tests.benchmarks._gpu import HELD_IN_EIGHT, HELD_LAYERS

pytestmark = pytest.mark.slow

SMALL = model_shapes.MISTRAL_7B | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # wider than 32 / 4, so that q and o are not square
    "vocab_size": 4096,
}


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("[!_]*.py")))
def test_every_benchmark_can_begin(name):
    assert callable(importlib.import_module(f"tests.benchmarks.{name}").main)


def test_a_model_of_random_weights_passes_the_model_check(tmp_path):
    demo.build_tokenizer(tmp_path, [f"word {number}" for number in range(64)])
    model_shapes.write(tmp_path, SMALL)
    facts = check_model(tmp_path)
    block = 2 * 32 * 64 + 2 * 32 * 32 + 3 * 32 * 48 + 2 * 32
    assert facts.parameters == 5 * block + 2 * 4096 * 32 + 32
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 2  # several files, as at full size


def test_the_shape_is_the_published_one():
    sizes = model_shapes.tensors(model_shapes.MISTRAL_7B).values()
    assert sum(map(math.prod, sizes)) == model_shapes.SHAPES["mistral-7b"].parameters


@pytest.mark.parametrize("cases", ["all-linear eight", "dense,all-linear eight", ""])
def test_an_unknown_case_is_refused_before_anything_is_measured(cases, capsys):
    with pytest.raises(SystemExit) as caught:
        fast_step.main(["--cases", cases])
    assert caught.value.code == 2
    assert "wide int8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, HELD_LAYERS),
        ({"matmul": "int8"}, HELD_IN_EIGHT),
        ({"lora_targets": ALL_LINEAR}, 9),  # one layer more left 0.35 GiB, and the step was not captured
    ],
)
def test_a_held_case_leaves_room_to_capture_its_step(changes, expected):
    fields = {"max_seq_len": 512, "micro_batch_size": 8, "gradient_checkpointing": False, "optimizer": "adamw_torch"}
    trial = benchmarks.a_trial("held", "M", recipe="fast", **fields, **changes)
    assert fast_step.hold_most_layers(model_shapes.MISTRAL_7B, trial).held_layers == expected


def test_ragged_samples_have_the_mean_length_that_was_asked_for():
    for mean in (97.0, 194.0, 207.0):
        lengths = fast_step.lengths(400, 512, mean)
        assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.02)
        assert fast_step.SHORTEST <= min(lengths) < 64 < mean < max(lengths) <= 512


def test_an_existing_folder_is_not_overwritten_by_a_model(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        model_shapes.main([str(tmp_path)])
    assert caught.value.code == 2
    assert f"{tmp_path}: already exists" in capsys.readouterr().err
