"""Cautions: one line a cause, the worst first, with the worker that it is about."""

from dataclasses import replace

import numpy as np
import pytest

from bench.records.result import Steps, TrialStatus
from reports.read.load import load
from reports.statistics.per_process import describe
from reports.summary.summarize import summarize
from tests.support.reports import synthetic
from tests.support.reports.noise import steps

HEAT = "throttled: hw_thermal_slowdown in {} % of samples"


@pytest.fixture
def told(tmp_path):
    """The cautions of a run of six configurations on four workers; `changed` alters results by worker and number."""

    def make(changed):
        trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 7))
        run = synthetic.record(trials)
        results = [changed(synthetic.result(plan, exact=True), number) for number, plan in enumerate(run.planned)]
        synthetic.write_results(tmp_path, run, results)
        return summarize(load(tmp_path)).cautions

    return make


def with_times(result, times):
    return replace(result, steps=replace(result.steps, step_time_sec=times))


def hot(result, number):
    if result.worker != "worker-4":
        return result
    slow = with_times(result, [second * 1.17 for second in result.steps.step_time_sec])
    return replace(slow, flags=[HEAT.format(20 + number)])


def test_a_throttled_worker_is_one_line_with_how_slow_it_is_and_why(told):
    assert told(hot) == (
        "worker-4 is 17 % slower than the other workers, throttled: hw_thermal_slowdown in 43 % of samples "
        "(6 of 6 trials).",
    )


def test_the_worst_is_first(told):
    def also_flagged(result, number):
        result = hot(result, number)
        return replace(result, flags=["process 7 was on the GPU"]) if number == 0 else result

    found = told(also_flagged)
    assert found[0].startswith("worker-4 is 17 % slower")
    assert found[1] == "rank-1.worker-1: process 7 was on the GPU"


def test_flags_that_differ_in_their_numbers_are_one_line(told):
    def flagged(result, number):
        return replace(result, flags=[HEAT.format(number + 1)]) if result.worker in ("worker-1", "worker-2") else result

    assert told(flagged) == (
        "12 trials on worker-1, worker-2: at worst throttled: hw_thermal_slowdown in 22 % of samples",
    )


def test_slow_steps_are_said_with_what_they_cost(told):
    def slow(result, number):
        times = [*result.steps.step_time_sec]
        times[5] *= 2.0
        return with_times(result, times) if number < 4 else result

    (said,) = told(slow)
    assert said.startswith("Slow steps make the elapsed throughput of rank-1 lower than its steady state by 6.2 %;")
    assert "times, dollars and energy are of elapsed throughput." in said


def test_what_was_stopped_or_lost_is_said_with_the_command_that_tries_it_again(told):
    ends = {1: TrialStatus.LOST, 2: TrialStatus.PREEMPTED, 3: TrialStatus.FAILED}
    failed, stopped = told(lambda result, number: replace(result, status=ends.get(number, TrialStatus.SUCCEEDED)))
    assert failed.startswith("3 of 24 planned trials gave no measurement")
    again = f"`inv bench --resume={synthetic.RUN_ID}` tries them again."
    assert stopped == f"2 trials were stopped or lost, which says nothing of a configuration; {again}"


def test_of_a_run_without_a_success_nothing_is_said_of_others(told):
    assert told(lambda result, _: replace(result, status=TrialStatus.FAILED)) == ()


def test_what_a_cancelled_trial_did_not_say_is_not_compared(told):
    def cancelled(result, number):
        if number != 3:
            return result
        return replace(
            result, status=TrialStatus.CANCELLED, reason="Ctrl-C", fingerprint={"python": "3.11.7"}, steps=Steps()
        )

    said, _ = told(cancelled)
    assert said.startswith("1 of 24 planned trials gave no measurement")


def test_configurations_on_other_workers_than_the_baseline_are_named(tmp_path):
    run = synthetic.record(workers=2, spread="shard")
    synthetic.write_run(tmp_path, run, exact=True)
    said = "optimized ran on other workers than baseline; their ratios assume that workers are within about 1 % of"
    assert said in "".join(summarize(load(tmp_path)).cautions)


def jumping(random, far, share, count=30):
    return 0.2 * np.exp(random.normal(0.0, 0.003, count) + far * (random.random(count) < share))


def test_steps_that_jump_between_two_clocks_are_seen_and_others_are_not():
    random = np.random.default_rng(5)
    for far, percent in ((0.04, 4.0), (0.3, 35.0)):
        two = describe([steps("a", tuple(jumping(random, far, 0.4)), process=str(n)) for n in range(200)])
        assert sum(one.levels_percent is not None for one in two) >= 180
        found = [one.levels_percent for one in two if one.levels_percent]
        assert np.median(found) == pytest.approx(percent, abs=0.3)
    one_level = [jumping(random, 0.0, 0.0) * np.exp(0.004 * random.gamma(2.0, 1.0, 30)) for _ in range(200)]
    rare = [np.where(random.random(30) < 0.06, 1.5, 1.0) * times for times in one_level]
    calm = describe([steps("a", tuple(times), process=str(n)) for n, times in enumerate((*one_level, *rare))])
    assert sum(one.levels_percent is not None for one in calm) <= 8
