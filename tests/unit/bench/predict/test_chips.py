"""The estimate for chips that were not measured: its range is that of the pairs where both are known."""

import dataclasses
import statistics
from typing import Any

import pytest

from bench.machine.gpu_specs import lookup
from bench.predict import chips, throughput
from bench.records import Trial
from tests.model_shapes import MISTRAL_7B
from tests.support.cases import load_cases

PAIRS = [parameter.values[0] for parameter in load_cases(__file__, "measured_steps.yaml")]
SHAPE: dict[str, Any] = {
    "name": "pair",
    "reason": "a test",
    "suite": "test",
    "profile": "gpu",
    "model": "m",
    "data": "d",
    "max_seq_len": 512,
    "micro_batch_size": 8,
    "gradient_checkpointing": False,
    "optimizer": "adamw_torch",
}


def trial_of(**changes: Any) -> Trial:
    if "lora_targets" in changes:
        changes["lora_targets"] = tuple(changes["lora_targets"])
    return Trial(**(SHAPE | changes))


def ratio(pair: Any) -> float:
    trial, chip = trial_of(**pair["trial"]), lookup(pair["chip"])
    assert chip is not None
    assert chip.bf16 is not None
    rate = throughput.positions_per_sec(MISTRAL_7B, trial) * chip.bf16 * throughput.ACHIEVABLE_SHARE
    return float(pair["measured_sec"]) * rate / (trial.micro_batch_size * trial.max_seq_len)


def test_the_range_of_an_estimate_is_that_of_the_measured_pairs() -> None:
    for recipe in ("fast", "reference"):
        ratios = [ratio(pair) for pair in PAIRS if pair["trial"]["recipe"] == recipe]
        expected = (min(ratios), statistics.median(ratios), max(ratios))
        assert chips.RATIOS[recipe] == pytest.approx(expected, abs=0.006)
    ratios = [ratio(pair) for pair in PAIRS]
    assert chips.RATIOS["stock"] == pytest.approx((min(ratios), statistics.median(ratios), max(ratios)), abs=0.006)


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["name"] for pair in PAIRS])
def test_a_measured_step_lies_within_the_range_of_its_estimate(pair: Any) -> None:
    forecasts = {each.name: each for each in chips.forecast_chips(MISTRAL_7B, trial_of(**pair["trial"]), None)}
    forecast = forecasts[pair["chip"]]
    assert 0.99 * forecast.row_sec_low <= pair["measured_sec"] <= 1.01 * forecast.row_sec_high


def test_a_chip_has_one_name_and_says_whether_the_training_fits() -> None:
    small, large = (
        {each.name: each.fits for each in chips.forecast_chips(MISTRAL_7B, trial_of(recipe="fast", **more), None)}
        for more in ({}, {"micro_batch_size": 64})
    )
    assert {"NVIDIA A10", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA H100 80GB HBM3", "NVIDIA H200"} <= set(small)
    assert all(name.replace(" ", "").replace("-", "").isalnum() for name in small)
    assert (small["NVIDIA A10"], large["NVIDIA A10"], large["NVIDIA H200"]) == (True, False, True)
    assert all(dataclasses.asdict(each)["row_sec"] > 0 for each in chips.forecast_chips(MISTRAL_7B, trial_of(), None))
    own = chips.forecast_chips(MISTRAL_7B, trial_of(), "NVIDIA A100-SXM4-40GB")
    assert "NVIDIA A100-SXM4-40GB" in {each.name for each in own}


def test_no_row_of_a_small_model_is_faster_than_its_launches() -> None:
    small = MISTRAL_7B | {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4}
    forecasts = chips.forecast_chips(small | {"num_key_value_heads": 2, "vocab_size": 264}, trial_of(), None)
    layers = MISTRAL_7B["num_hidden_layers"]
    (floor,) = {(each.row_sec_low, each.row_sec, each.row_sec_high) for each in forecasts if each.name.endswith("H200")}
    assert floor == tuple(layers * seconds for seconds in chips.LAYER_SEC)
