"""Cost: golden dollars, speed-ups that were measured or are assumed, and the table of prices."""

import dataclasses
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml

from reports.read.run_folder import load
from reports.statistics.types import Estimate
from reports.summary import cost
from reports.summary.cost import BootVolume, HostedPrice, Price, ScalingCost
from reports.summary.prices import PriceError, Pricing, read_table, select_prices
from reports.summary.summarize import configuration_key, measure_speedups, scalings, summarize
from tests.support.cases import load_cases
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


OPTIMUM = synthetic.trial("optimized", max_seq_len=64, micro_batch_size=8)


def ranks(world_size, rate, trial=OPTIMUM):
    """Return a distributed trial of `trial` on `world_size` ranks with `rate` samples per second in total."""
    plan = synthetic.planned(
        (replace(trial, name=f"ddp-{world_size}", kind="distributed", world_size=world_size),), ["worker-1"]
    )[0]
    global_rate = [synthetic.measurement("global_samples_per_sec", rate, world_size=world_size)]
    return replace(synthetic.result(plan, exact=True), measurements=global_rate)


def speedups(*results, single_rates=None):
    return measure_speedups(results, {result.trial_id: result.trial.name for result in results}, single_rates or {})


KEY = configuration_key(ranks(1, 1.0))


OTHER_KEY = configuration_key(synthetic.result(synthetic.planned((synthetic.trial("baseline"),), ["worker-1"])[0]))


@pytest.mark.parametrize(
    ("rates", "single_rate", "key", "gpus", "speedup", "is_measured", "source"),
    [
        pytest.param({2: 2.85}, 1.50, KEY, 2, 1.9, True, "measured: ddp-2", id="the training trial is one GPU"),
        pytest.param(
            {1: 1.46, 2: 2.85}, 1.50, KEY, 2, 2.85 / 1.46, True, "measured: ddp-2", id="a single rank is preferred"
        ),
        pytest.param(
            *({1: 1.46, 4: 5.50}, None, OTHER_KEY, 4, 5.50 / 1.46, False, "assumed: .* ddp-4"),
            id="another configuration's scaling is an assumption that names it",
        ),
        pytest.param(
            *({1: 1.0, 2: 1.9}, None, KEY, 4, 3.8, False, r"assumed: .*95\.0 % .* ddp-2 .* 4 GPUs"),
            id="more GPUs than were measured are assumed to be as efficient",
        ),
        pytest.param(
            *({1: 1.0, 2: 2.07}, None, KEY, 2, 2.0, True, r"measured: ddp-2; 2\.07 .* 2"),
            id="above linear is stated and priced as linear",
        ),
        pytest.param(
            *({1: 1.0, 2: 2.07}, None, KEY, 4, 4.0, False, r"assumed: .*100\.0 % .* ddp-2 .* 4 GPUs"),
            id="above linear is assumed as linear on more GPUs",
        ),
    ],
)
def test_a_speedup_is_marked_as_measured_or_assumed(rates, single_rate, key, gpus, speedup, is_measured, source):
    known = speedups(
        *(ranks(count, rate) for count, rate in rates.items()), single_rates=single_rate and {KEY: single_rate}
    )
    (scaling,) = (candidate for candidate in scalings(key, known) if candidate.gpus == gpus)
    assert (scaling.speedup, scaling.is_measured) == (pytest.approx(speedup), is_measured)
    assert re.fullmatch(source, scaling.source)


def test_a_distributed_trial_without_a_rate_has_no_speedup():
    unmeasured = replace(ranks(2, 1.9), measurements=[synthetic.measurement("global_samples_per_sec", None)])
    assert speedups(ranks(1, 1.0), unmeasured) == {}
    assert speedups(ranks(2, 1.9)) == {}  # nothing to compare it with


def test_a_report_prices_four_gpus_by_what_its_own_distributed_trials_measured(tmp_path):
    ddp = tuple(replace(OPTIMUM, name=f"ddp-{count}", kind="distributed", world_size=count) for count in (1, 4))
    results = []
    record = synthetic.record((*synthetic.quick(), *ddp), workers=1)
    for plan in record.planned:
        rate = {1: 50.0, 4: 3.6 * 50.0}[plan.trial.world_size]
        measurements = ranks(plan.trial.world_size, rate).measurements if plan.trial.kind == "distributed" else []
        results.append(synthetic.result(plan, exact=True, measurements=measurements))
    synthetic.write_results(tmp_path, record, results)
    summary = summarize(load(tmp_path), Pricing(usd_per_gpu_hour=2.0, source="list"))
    baseline, optimized = summary.rows
    assert optimized.cost.fine_tunings[2].scaling.speedup == pytest.approx(3.6)
    assert optimized.cost.fine_tunings[2].scaling.is_measured
    assert not baseline.cost.fine_tunings[2].scaling.is_measured
    assert optimized.cost.fine_tunings[2].usd.value == pytest.approx(optimized.cost.fine_tunings[0].usd.value / 0.9)


A10 = ("NVIDIA A10",)


def dated(**changed):
    return {"amount": 4.0, "unit": "USD per GPU hour", "source": "list", "dated": date(2026, 1, 1)} | changed


def table(folder, **changed):
    """Write a table with one shape; `changed` replaces its keys, None removes them."""
    shape = {"gpu": "NVIDIA X", "gpus": 2, "on_demand": dated(), "preemptible": dated(amount=2.0)} | changed
    path = folder / "my prices.yaml"
    shape = {key: value for key, value in shape.items() if value is not None}
    path.write_text(yaml.safe_dump({"schema_version": 1, "shapes": {"X.1": shape}}))
    return path


def test_the_projects_table_is_valid_and_has_the_a10():
    first, *others = select_prices(Pricing(), A10)
    assert (first.name, first.usd_per_gpu_hour, first.shape) == ("on-demand", 2.0, "VM.GPU.A10.1")
    assert "B95909" in first.source
    assert first.dated is not None
    assert [(other.name, other.usd_per_gpu_hour) for other in others] == [
        ("reference study", 0.60),
        ("reference study, spot", 0.18),
    ]
    assert first.boot_volume.usd_per_hour == pytest.approx(50 * 0.0425 / 730)
    traffic = first.other_prices[1].description
    assert traffic.startswith(
        "traffic out of North America, Europe and the UK 0.0085 USD per GB after 10,240 GB a month "
    )


def test_a_price_in_the_settings_comes_before_the_tables_and_the_preemptible_one_last(tmp_path):
    pricing = Pricing(usd_per_gpu_hour=1.5, source="our contract", table=table(tmp_path))
    selected = select_prices(pricing, ["NVIDIA X"])
    assert [(price.name, price.usd_per_gpu_hour, price.gpus_per_node) for price in selected] == [
        ("set", 1.5, 1),
        ("on-demand", 4.0, 2),
        ("preemptible", 2.0, 2),
    ]


@pytest.mark.parametrize("devices", [("CPU",), ("NVIDIA T4",), ("NVIDIA A10", "NVIDIA H200"), ()])
def test_an_unknown_gpu_and_a_mixed_run_have_no_price(devices):
    assert select_prices(Pricing(), devices) == ()


def test_a_named_shape_is_priced_whatever_ran():
    assert select_prices(Pricing(shape="VM.GPU.A10.1"), ("CPU",))[0].usd_per_gpu_hour == 2.0


@pytest.mark.parametrize(
    ("pricing", "message"),
    [
        (
            Pricing(shape="VM.GPU.A11"),
            r"cost\.shape: 'VM\.GPU\.A11': .*; .*prices\.yaml .*'VM\.GPU\.A10\.1'",
        ),
        (
            Pricing(table=Path("none.yaml")),
            r"none\.yaml: .*No such file or directory; .*cost\.prices",
        ),
    ],
)
def test_an_unknown_shape_and_no_table_are_refused(pricing, message):
    with pytest.raises(PriceError, match=message):
        select_prices(pricing, A10)


@pytest.mark.parametrize("case", load_cases(__file__, "invalid_shapes.yaml"))
def test_an_invalid_shape_is_refused_in_one_line_with_the_key(tmp_path, case):
    path = table(
        tmp_path, **{key: dated(**item) if isinstance(item, dict) else item for key, item in case["input"].items()}
    )
    with pytest.raises(PriceError) as refused:
        select_prices(Pricing(table=path), ["NVIDIA X"])
    assert str(refused.value).startswith(f"{path}: shapes.X.1: {case['expected']}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("case", load_cases(__file__, "invalid_price_files.yaml"))
def test_a_file_that_is_not_a_table_is_refused_in_one_line(tmp_path, case):
    path = tmp_path / "prices.yaml"
    path.write_bytes(case["input"].encode("latin-1"))
    with pytest.raises(PriceError) as refused:
        read_table(path)
    assert case["expected"] in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
