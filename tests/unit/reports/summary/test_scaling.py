"""Speed-ups: measured where a distributed trial says, else assumed, and always said which."""

from dataclasses import replace

import pytest

from reports.read.load import load
from reports.summary.prices import Pricing
from reports.summary.scaling import key, measured, scalings
from reports.summary.summarize import summarize
from tests.support.reports import synthetic

OPTIMUM = synthetic.trial("optimized", max_seq_len=64, micro_batch_size=8)


def ranks(world_size, rate, trial=OPTIMUM):
    """A distributed trial of `trial` on so many ranks that reached `rate` samples per second together."""
    plan = synthetic.planned(
        (replace(trial, name=f"ddp-{world_size}", kind="distributed", world_size=world_size),), ["worker-1"]
    )[0]
    taken = [synthetic.measurement("global_samples_per_sec", rate, world_size=world_size)]
    return replace(synthetic.result(plan, exact=True), measurements=taken)


def speedups(*results, alone=None):
    return measured(results, {result.trial_id: result.trial.name for result in results}, alone or {})


LIKE = key(ranks(1, 1.0))


def test_the_published_table_comes_out_as_published():
    found = speedups(ranks(1, 1.46), ranks(2, 2.85), ranks(4, 5.50))
    one, two, four = scalings(LIKE, found)
    assert (one.speedup, one.is_measured) == (1.0, True)
    assert (two.speedup, two.is_measured) == (pytest.approx(1.952, abs=1e-3), True)
    assert (four.speedup, four.is_measured) == (pytest.approx(3.767, abs=1e-3), True)
    assert four.source == "measured: ddp-4"


OTHER = key(synthetic.result(synthetic.planned((synthetic.trial("baseline"),), ["worker-1"])[0]))


@pytest.mark.parametrize(
    ("rates", "alone", "like", "gpus", "speedup", "source"),
    [
        pytest.param({2: 2.85}, 1.50, LIKE, 2, 1.9, "measured: ddp-2", id="the training trial is one GPU"),
        pytest.param({1: 1.46, 2: 2.85}, 1.50, LIKE, 2, 2.85 / 1.46, "measured: ddp-2", id="a rank alone is preferred"),
        pytest.param(
            *({1: 1.46, 4: 5.50}, None, OTHER, 4, 5.50 / 1.46),
            "assumed: the scaling measured with ddp-4, another configuration",
            id="another configuration's scaling is an assumption that names it",
        ),
        pytest.param(
            *({1: 1.0, 2: 1.9}, None, LIKE, 4, 3.8, "assumed: the 95.0 % efficiency of ddp-2 holds on 4 GPUs"),
            id="more GPUs than were measured are assumed to be as efficient",
        ),
        pytest.param(
            *({1: 1.0, 2: 2.07}, None, LIKE, 2, 2.0),
            "measured: ddp-2; 2.07 times one GPU is above linear, so it is priced as 2",
            id="above linear is said and priced as linear",
        ),
        pytest.param(
            *({1: 1.0, 2: 2.07}, None, LIKE, 4, 4.0, "assumed: the 100.0 % efficiency of ddp-2 holds on 4 GPUs"),
            id="what is above linear is assumed of more GPUs as linear",
        ),
    ],
)
def test_a_speedup_is_measured_or_assumed_and_says_which(rates, alone, like, gpus, speedup, source):
    known = speedups(*(ranks(count, rate) for count, rate in rates.items()), alone=alone and {LIKE: alone})
    (found,) = (scaling for scaling in scalings(like, known) if scaling.gpus == gpus)
    assert (found.speedup, found.is_measured) == (pytest.approx(speedup), source.startswith("measured"))
    assert found.source == source


def test_without_any_distributed_trial_scaling_is_assumed_perfect():
    assert [scaling.speedup for scaling in scalings(LIKE, {})] == [1.0, 2.0, 4.0]
    assert [scaling.is_measured for scaling in scalings(LIKE, {})] == [True, False, False]


def test_a_distributed_trial_that_measured_nothing_says_nothing():
    silent = replace(ranks(2, 1.9), measurements=[synthetic.measurement("global_samples_per_sec", None)])
    assert speedups(ranks(1, 1.0), silent) == {}
    assert speedups(ranks(2, 1.9)) == {}  # nothing to compare it with


def test_a_report_prices_four_gpus_by_what_its_own_distributed_trials_measured(tmp_path):
    ddp = tuple(replace(OPTIMUM, name=f"ddp-{count}", kind="distributed", world_size=count) for count in (1, 4))
    results = []
    record = synthetic.record((*synthetic.quick(), *ddp), workers=1)
    for plan in record.planned:
        rate = {1: 50.0, 4: 3.6 * 50.0}[plan.trial.world_size]
        taken = ranks(plan.trial.world_size, rate).measurements if plan.trial.kind == "distributed" else []
        results.append(synthetic.result(plan, exact=True, measurements=taken))
    synthetic.write_results(tmp_path, record, results)
    summary = summarize(load(tmp_path), Pricing(usd_per_gpu_hour=2.0, source="list"))
    baseline, optimized = summary.rows
    assert optimized.cost.fine_tunings[2].scaling.speedup == pytest.approx(3.6)
    assert optimized.cost.fine_tunings[2].scaling.is_measured
    assert not baseline.cost.fine_tunings[2].scaling.is_measured
    assert optimized.cost.fine_tunings[2].usd.value == pytest.approx(optimized.cost.fine_tunings[0].usd.value / 0.9)
