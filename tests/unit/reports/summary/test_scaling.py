"""Speed-ups: measured by a distributed trial or assumed, and marked as such."""

import re
from dataclasses import replace

import pytest

from reports.read.run_folder import load
from reports.summary.prices import Pricing
from reports.summary.summarize import configuration_key, measure_speedups, scalings, summarize
from tests.support.reports import synthetic

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
