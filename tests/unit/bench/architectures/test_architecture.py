"""Declarations: what fails at registration, and what is read from config.json. No torch."""

import ast
import dataclasses
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from bench.architectures import architecture, families, find, unregistered
from bench.architectures.architecture import (
    ATTENTION_PRODUCTS,
    COMMON_NAMES,
    Architecture,
    ConfigError,
    Feature,
    UnknownLayer,
    register,
)
from bench.data import trial_inputs
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from tests.support.cases import load_cases
from tests.support.paths import ROOT

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
LAYERS = families.LLAMA_LAYERS
DEEP: list[Any] = []
for _ in range(2000):  # deeper than `repr` and `json.dumps` can follow
    DEEP = [DEEP]
# Data for settings and records, and makers of models.
# The last one names what transformers calls the parameters of all experts.
MAY_NAME_LAYERS = ("bench/records/validation.py", "bench/data/demo.py", "bench/qlora/experts.py")


def test_the_names_that_settings_and_records_use_are_llamas_layers():
    names = {layer.name: layer.product in ATTENTION_PRODUCTS for layer in LAYERS}
    assert tuple(names) == ALL_LINEAR
    assert tuple(name for name, in_attention in names.items() if in_attention) == ATTENTION_PROJECTIONS
    assert tuple(chain.from_iterable(COMMON_NAMES.values())) == ALL_LINEAR


def test_a_second_registration_fails_with_the_model_type_and_changes_nothing():
    with pytest.raises(ValueError, match=r"^architecture mistral: registered twice"):
        register(dataclasses.replace(families.LLAMA, model_types=("dummy", "mistral")))
    assert not architecture.is_registered({"model_type": "dummy"})
    assert find({"model_type": "mistral"}) is families.MISTRAL


@pytest.mark.parametrize("model_type", ["", None, 3, ["llama"], {}, DEEP], ids=lambda value: type(value).__name__)
def test_what_is_not_a_model_type_is_refused_with_the_registered_ones(model_type):
    with pytest.raises(ConfigError, match=r"^model_type: expected .*llama, .*mistral, .*, found "):
        find({"model_type": model_type})


@pytest.mark.parametrize("case", load_cases(__file__, "geometry.yaml"))
def test_sizes_are_read_from_the_config(case):
    config = {key: value for key, value in (CONFIG | case["input"]).items() if value != "missing"}
    geometry, shapes = find(config).geometry(config), find(config).shapes(config)
    values = vars(geometry) | {name: list(shape) for name, shape in shapes.items()}
    assert values.items() >= case["expected"].items()


@pytest.mark.parametrize("key", [key for key in CONFIG if key not in ("model_type", "num_key_value_heads")])
@pytest.mark.parametrize(
    "value", [None, 0, -1, 8.0, "8", True, 1 << 40, {}, DEEP], ids=lambda value: type(value).__name__
)
def test_an_invalid_size_is_refused_by_its_key(key, value):
    with pytest.raises(ConfigError, match=f"^{key}: expected "):
        find(CONFIG).geometry(CONFIG | {key: value})


@pytest.mark.parametrize("case", load_cases(__file__, "features.yaml"))
def test_features_are_read_from_the_config(case):
    config = CONFIG | case["input"]
    assert [feature.name for feature in find(config).features(config)] == case["expected"]


def select(family: Architecture, names: Sequence[str]) -> list[str] | str:
    """Return the selected layers, or the first unknown name."""
    try:
        return list(family.select(names))
    except UnknownLayer as error:
        return error.name


@pytest.mark.parametrize("case", load_cases(__file__, "targets.yaml"))
def test_layers_are_selected_by_their_names_or_the_common_ones(case):
    model_type, names = case["input"]
    assert select(find({"model_type": model_type}), names) == case["expected"]


@pytest.mark.parametrize("case", load_cases(__file__, "unregistered.yaml"))
def test_the_layers_of_an_unregistered_model_are_read_from_its_weights(case):
    blocks = case["input"]["blocks"]
    shapes = {f"{blocks}.{index}.{path}.weight": tuple(shape) for index, layer in enumerate(case["input"]["layers"])
              for path, shape in layer.items()}  # fmt: skip
    shapes |= {"model.embed.weight": (64, 32), f"{blocks}.0.norm.weight": (32,), "vision.layers.0.proj.weight": (8, 8)}
    config = unregistered.describe(
        {"model_type": "other", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}, shapes
    )
    other, expected = find(config), case["expected"]
    assert {layer.name: layer.product for layer in other.linear_layers} == expected["layers"]
    assert select(other, ATTENTION_PROJECTIONS) == expected["attention"]
    assert select(other, ALL_LINEAR) == expected["all"]


def test_an_unregistered_model_is_refused_by_code_with_its_arithmetic_written_out():
    config = {"model_type": "other"}
    reason = "model type other, which is not a known family"
    assert find(config).unsupported_feature(config, trial_inputs.FEATURES, 8) == reason


@pytest.mark.parametrize(
    "text",
    [None, {}, {"model_type": "other"}, {"model_type": "mistral3"}, DEEP],
    ids=lambda value: type(value).__name__ + str(len(str(value)[:40]) if value is not DEEP else ""),
)
def test_a_model_with_images_needs_a_known_text_model(text):
    config = {"model_type": "mistral3", "text_config": text}
    with pytest.raises(ConfigError, match=r"^text_config: "):
        find(config).geometry(config)


def test_no_other_module_of_bench_decides_by_a_model_type_a_layer_or_a_key_of_the_config():
    # `model_type` names Liger's patch; the positions are a field of ModelFacts, too.
    names = {"llama", "mistral", "sliding_window", "hidden_act", *CONFIG} - {"model_type", "max_position_embeddings"}
    names |= {name for layer in LAYERS for name in (layer.name, layer.path)}
    allowed = {ROOT / path for path in MAY_NAME_LAYERS} | set((ROOT / "bench/architectures").glob("*.py"))
    findings = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(set((ROOT / "bench").rglob("*.py")) - allowed)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Constant) and node.value in names)
        or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in names)
    ]
    assert findings == []


def test_values_too_deep_to_print_are_described():
    deep = {"hidden_act": DEEP, "rope_scaling": {"type": DEEP}, "attention_dropout": DEEP}
    features = find(CONFIG).features(CONFIG | deep)
    assert features.keys() == {Feature.OTHER_ACTIVATION, Feature.SCALED_ROTATION, Feature.ATTENTION_DROPOUT}
    for description in features.values():
        assert len(description) < 100


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("language_model.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.transformer.layers.3.attention.q_proj.weight", None),
    ],
)
def test_weights_of_a_text_part_are_found_by_the_names_of_both_versions_of_transformers(name, expected):
    family = find({"model_type": "mistral3"})
    assert family.module_name(name) == (expected or name)
