"""Cost: golden dollars, several GPUs, and no amount without a price and its source."""

import dataclasses
from dataclasses import replace

import pytest

from reports.read.run_folder import load
from reports.statistics.types import Estimate
from reports.summary import cost
from reports.summary.cost import BootVolume, HostedPrice, Price, ScalingCost
from reports.summary.prices import Pricing
from reports.summary.summarize import summarize
from tests.support.reports import synthetic

SAMPLES = Estimate(value=1.46, low=1.40, high=1.50, n=60, over="workers")
TOKENS = Estimate(value=500.0, low=480.0, high=520.0, n=60, over="workers")
LIST = Price(usd_per_gpu_hour=2.0, source="list price B95909", name="on-demand", dated="2026-11-20")
LINEAR = [cost.assumed_scaling(gpus) for gpus in cost.FINE_TUNING_GPUS]


@pytest.mark.parametrize(
    ("scaling", "minutes", "usd_tolerance"),
    [
        (ScalingCost(gpus=1, speedup=1.0, is_measured=True, source="the optimum"), 114.2, 0.005),
        (ScalingCost(gpus=4, speedup=5.82 / 1.46, is_measured=True, source="run B"), 28.6, 0.01),
    ],
)
def test_published_runs_cost_eleven_cents_and_a_fine_tuning_a_dollar_fourteen(scaling, minutes, usd_tolerance):
    costs = cost.cost(SAMPLES, TOKENS, Price(usd_per_gpu_hour=0.60, source="reference"), scalings=[scaling])
    assert costs.usd_per_1000_samples.value == pytest.approx(0.114, abs=0.0005)
    (tuning,) = costs.fine_tunings
    assert (tuning.gpus, tuning.training_sec.value / 60) == (scaling.gpus, pytest.approx(minutes, abs=0.1))
    assert tuning.usd.value == pytest.approx(1.14, abs=usd_tolerance)


def test_samples_and_tokens_cost_their_time_with_the_inverted_interval():
    costs = cost.cost(SAMPLES, TOKENS, LIST, scalings=LINEAR)
    for amount, count, rate in (
        (costs.usd_per_1000_samples, 1000, SAMPLES),
        (costs.usd_per_million_useful_tokens, 1e6, TOKENS),
    ):
        expected = [2.0 / 3600 * count / per_sec for per_sec in (rate.high, rate.value, rate.low)]
        assert [amount.low, amount.value, amount.high] == pytest.approx(expected)


def test_unmeasured_scaling_is_marked_as_an_assumption():
    on_one, on_two, on_four = cost.cost(SAMPLES, TOKENS, LIST, scalings=LINEAR).fine_tunings
    assert [plan.gpus for plan in (on_one, on_two, on_four)] == [1, 2, 4]
    assert on_one.scaling.is_measured
    assert not on_two.scaling.is_measured
    assert on_four.scaling.source.startswith("assumed: 4 GPUs")
    assert on_four.usd.value == pytest.approx(on_one.usd.value)  # linear scaling costs the same
    assert on_four.training_sec.value == pytest.approx(on_one.training_sec.value / 4)


def test_start_up_and_boot_volumes_are_billed_in_addition_to_the_training():
    volume = BootVolume(size_gb=73.0, amount=0.1, unit="USD per GB month", source="list", dated="2026-11-20")
    priced = replace(LIST, boot_volume=volume)  # 1 cent per hour
    rate = Estimate(value=10_000 / 3600, low=None, high=None, n=1)  # one hour of training on one GPU
    on_one, on_two, _ = cost.cost(rate, rate, priced, scalings=LINEAR, startup_sec=360.0).fine_tunings
    assert on_one.usd.value == pytest.approx(2.0)
    assert on_one.boot_volume_usd == pytest.approx(0.011)
    assert on_one.usd_billed.value == pytest.approx(2.0 * 1.1 + 0.011)
    assert on_two.usd_billed.value == pytest.approx(2 * (2.0 + 0.01) * (0.5 + 0.1))
    shared = cost.cost(rate, rate, replace(priced, gpus_per_node=2), scalings=LINEAR, startup_sec=360.0).fine_tunings[1]
    assert shared.boot_volume_usd == pytest.approx(on_two.boot_volume_usd / 2)  # both GPUs are in one node


def test_every_amount_has_its_price_source_and_day_and_without_a_price_there_is_no_amount():
    costs = cost.cost(SAMPLES, TOKENS, LIST, scalings=LINEAR)
    assert costs.price.description == "$2.00 per GPU hour, on-demand (list price B95909, 2026-11-20)"
    from_setting = Pricing(usd_per_gpu_hour=2.0, source="my contract")
    assert from_setting.price().description == "$2.00 per GPU hour (my contract)"
    assert Pricing(source="somewhere").price() is None
    assert Pricing(hosted_source="somewhere").hosted() is None
    service = Pricing(hosted_usd_per_10000_samples=10.0, hosted_source="a list of today")
    assert service.hosted() == HostedPrice(usd_per_10000_samples=10.0, source="a list of today")
    both = dataclasses.replace(service, hosted_usd_per_million_tokens=0.48).hosted()
    assert both is not None
    assert both.description == (
        "A hosted service charges $0.480 per million tokens and $10.0 per 10,000 samples (a list of today)."
    )


def test_slow_steps_cost_money_but_not_the_steady_state(tmp_path):
    def slowed(result):
        times = [second * (3.0 if index == 4 else 1.0) for index, second in enumerate(result.steps.step_time_sec)]
        return replace(result, steps=replace(result.steps, step_time_sec=times))

    synthetic.exact_run(tmp_path)
    run, priced = load(tmp_path), Pricing(usd_per_gpu_hour=2.0, source="a list")
    before = summarize(run, priced).rows[0]
    after = summarize(replace(run, results=tuple(map(slowed, run.results))), priced).rows[0]
    assert after.measured.steady_samples_per_sec.value == pytest.approx(before.measured.steady_samples_per_sec.value)
    longer = 17 / 15
    assert after.cost.usd_per_1000_samples.value == pytest.approx(longer * before.cost.usd_per_1000_samples.value)
    plans = [row.cost.fine_tunings[0].training_sec.value for row in (before, after)]
    assert plans[1] == pytest.approx(longer * plans[0])
