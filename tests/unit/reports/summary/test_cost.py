"""Cost: golden dollars, what several GPUs cost, and no dollar without a price and its source."""

from dataclasses import replace
from datetime import date

import pytest

from reports.statistics.types import Estimate
from reports.summary import cost
from reports.summary.cost import Amount, BootVolume, Hosted, Price, ScalingCost
from reports.summary.prices import Pricing
from tests.support.reports import synthetic

SAMPLES = Estimate(value=1.46, low=1.40, high=1.50, n=60, over="workers")
TOKENS = Estimate(value=500.0, low=480.0, high=520.0, n=60, over="workers")
LIST = Price(usd_per_gpu_hour=2.0, source="list price B95909", name="on-demand", dated=date(2026, 11, 20))


@pytest.mark.parametrize(
    ("scaling", "minutes", "usd_within"),
    [
        (ScalingCost(gpus=1, speedup=1.0, is_measured=True, source="the optimum"), 114.2, 0.005),
        (ScalingCost(gpus=4, speedup=5.82 / 1.46, is_measured=True, source="run B"), 28.6, 0.01),
    ],
)
def test_published_runs_cost_eleven_cents_and_a_fine_tuning_a_dollar_fourteen(scaling, minutes, usd_within):
    found = cost.cost(SAMPLES, TOKENS, Price(usd_per_gpu_hour=0.60, source="reference"), scalings=[scaling])
    assert found.usd_per_1000_samples.value == pytest.approx(0.114, abs=0.0005)
    (one,) = found.fine_tunings
    assert (one.gpus, one.training_sec.value / 60) == (scaling.gpus, pytest.approx(minutes, abs=0.1))
    assert one.usd.value == pytest.approx(1.14, abs=usd_within)


def test_samples_and_tokens_cost_the_time_they_take_and_the_interval_turns_over_because_faster_is_cheaper():
    found = cost.cost(SAMPLES, TOKENS, LIST)
    for amount, many, rate in (
        (found.usd_per_1000_samples, 1000, SAMPLES),
        (found.usd_per_million_useful_tokens, 1e6, TOKENS),
    ):
        expected = [2.0 / 3600 * many / per_sec for per_sec in (rate.high, rate.value, rate.low)]
        assert [amount.low, amount.value, amount.high] == pytest.approx(expected)


def test_without_an_interval_the_cost_has_none():
    rate = Estimate(value=1.0, low=None, high=None, n=1)
    found = cost.cost(rate, rate, Price(usd_per_gpu_hour=3.6, source="list"))
    assert found.usd_per_1000_samples == Amount(value=pytest.approx(1.0), low=None, high=None)
    assert found.fine_tunings[2].usd.low is None


def test_more_gpus_without_a_measurement_are_an_assumption_that_says_so():
    one, two, four = cost.cost(SAMPLES, TOKENS, LIST).fine_tunings
    assert [plan.gpus for plan in (one, two, four)] == [1, 2, 4]
    assert one.scaling.is_measured
    assert not two.scaling.is_measured
    assert four.scaling.source.startswith("assumed: 4 GPUs are 4 times as fast as one")
    assert four.usd.value == pytest.approx(one.usd.value)  # perfect scaling costs the same
    assert four.training_sec.value == pytest.approx(one.training_sec.value / 4)


def test_start_up_and_boot_volumes_are_billed_beside_the_training():
    volume = BootVolume(size_gb=73.0, usd_per_gb_month=0.1, source="list", dated=date(2026, 11, 20))  # 1 cent an hour
    priced = replace(LIST, boot_volume=volume)
    rate = Estimate(value=10_000 / 3600, low=None, high=None, n=1)  # one hour of training on one GPU
    one, two, _ = cost.cost(rate, rate, priced, startup_sec=360.0).fine_tunings
    assert one.usd.value == pytest.approx(2.0)
    assert one.boot_volume_usd == pytest.approx(0.011)
    assert one.usd_billed.value == pytest.approx(2.0 * 1.1 + 0.011)
    assert two.usd_billed.value == pytest.approx(2 * (2.0 + 0.01) * (0.5 + 0.1))
    shared = cost.cost(rate, rate, replace(priced, gpus_per_node=2), startup_sec=360.0).fine_tunings[1]
    assert shared.boot_volume_usd == pytest.approx(two.boot_volume_usd / 2)  # both GPUs are in one node


def test_every_dollar_names_its_price_its_source_and_its_day_and_without_a_price_there_is_none():
    found = cost.cost(SAMPLES, TOKENS, LIST)
    assert found.price.words == "$2.00 per GPU hour, on-demand (list price B95909, 2026-11-20)"
    set_by_hand = Pricing(usd_per_gpu_hour=2.0, source="my contract")
    assert set_by_hand.price().words == "$2.00 per GPU hour (my contract)"
    assert Pricing(source="somewhere").price() is None
    assert Pricing(hosted_source="somewhere").hosted() is None
    service = Pricing(hosted_usd_per_10000_samples=10.0, hosted_source="a list of today")
    assert service.hosted() == Hosted(usd_per_10000_samples=10.0, source="a list of today")


@pytest.mark.parametrize("amount", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_price_is_refused(amount):
    with pytest.raises(ValueError, match="price_usd_per_gpu_hour: expected an amount above 0"):
        Pricing(usd_per_gpu_hour=amount, source="list").price()
    with pytest.raises(ValueError, match="hosted_usd_per_10000_samples: expected an amount above 0"):
        Pricing(hosted_usd_per_10000_samples=amount, hosted_source="list").hosted()


@pytest.mark.parametrize("source", [None, "", "  "])
def test_a_price_without_a_source_is_refused(source):
    with pytest.raises(ValueError, match="a price needs its source"):
        Pricing(usd_per_gpu_hour=2.0, source=source).price()
    with pytest.raises(ValueError, match="needs its source"):
        Pricing(hosted_usd_per_10000_samples=10.0, hosted_source=source).hosted()


def result(worker, began, wall, steps, **phases):
    plan = synthetic.planned((synthetic.trial(),), [worker])[0]
    one = synthetic.result(plan, exact=True)
    return replace(
        one,
        started_at=f"2026-03-01T10:{began}+00:00",
        wall_time_sec=wall,
        phases=phases,
        steps=synthetic.measured_steps(plan.trial, steps, step_time_sec=1.0, exact=True),
    )


def test_a_runs_hours_are_told_apart_into_useful_by_phase_and_idle():
    # worker-1: 60 s, 20 s idle, 40 s; worker-2: 100 s.
    found = cost.billed(
        [
            result("worker-1", "00:00", 60.0, 30, load=20.0, measure=32.0, warmup=5.0),
            result("worker-1", "01:20", 40.0, 20, load=15.0, measure=20.0),
            result("worker-2", "00:00", 100.0, 50, load=40.0, measure=50.0),
        ]
    )
    assert (found.workers, found.held_sec, found.useful_sec) == (2, 220.0, 100.0)
    assert found.idle_sec == pytest.approx(20.0)
    assert found.by_phase == {"load": 75.0, "measure": 2.0, "warmup": 5.0, "other": pytest.approx(18.0)}
    assert found.useful_percent == pytest.approx(100 * 100 / 220)
    assert "pulling the image" in found.unknown
    assert found.useful_sec + found.idle_sec + sum(found.by_phase.values()) == pytest.approx(found.held_sec)
    leader = result("worker-1", "00:00", 60.0, 30, measure=30.0)
    together = replace(leader, trial=replace(leader.trial, kind="distributed", world_size=4))
    assert "the other workers of trials over several" in cost.billed([together]).unknown
    assert "the other workers of trials over several" not in found.unknown


def test_a_pod_that_moved_to_a_node_with_another_clock_was_held_for_as_long_as_the_ledger_says():
    before = result("worker-1", "00:00", 60.0, 30, measure=30.0)
    moved = replace(result("worker-1", "00:00", 40.0, 20, measure=20.0), trial_id="moved", attempt=2)
    moved = replace(moved, started_at="2026-03-01T03:01:20+00:00")  # 7 h behind
    held = cost.billed([before, moved], {(before.trial_id, 1): 1000.0, ("moved", 2): 1080.0})
    assert (held.held_sec, held.idle_sec) == (120.0, 20.0)
    assert not any("clocks" in one for one in held.unknown)
    for ledger in ({}, {(before.trial_id, 1): 1000.0}, {(before.trial_id, 1): 1000.0, ("moved", 1): 1080.0}):
        guessed = cost.billed([before, moved], ledger)
        assert guessed.held_sec > 6 * 3600
        assert guessed.unknown[-1] == "whether the workers' clocks jumped: the run's ledger is missing or incomplete"


def test_a_run_whose_trials_do_not_say_when_they_ran_has_no_bill():
    one = synthetic.result(synthetic.planned((synthetic.trial(),), ["worker-1"])[0])
    assert cost.billed([replace(one, started_at=None)]) is None
    assert cost.billed([replace(one, started_at="yesterday")]) is None
    assert cost.billed([replace(one, wall_time_sec=0.0)]) is None
    assert cost.billed([]) is None


def test_start_up_is_what_comes_before_the_first_measured_step():
    trials = [
        result("worker-1", "00:00", 60.0, 5, **{"import": 2.0, "load": load, "measure": 30.0}) for load in (4.0, 8.0)
    ]
    assert cost.startup_sec(trials) == pytest.approx(8.0)
    assert cost.startup_sec([]) is None
