"""Cautions: one line per cause, the most important first, with the worker concerned."""

import re
from dataclasses import replace

import numpy as np
import pytest

from bench.records.result import Steps
from bench.records.status import TrialStatus
from reports.read.load import load
from reports.statistics.per_process import describe
from reports.summary import warnings
from reports.summary.summarize import summarize
from reports.summary.warnings import slower_workers
from tests.support.reports import synthetic
from tests.support.reports.noise import steps

THROTTLED = "throttled: hw_thermal_slowdown in {} % of samples"


@pytest.fixture
def cautions_of(tmp_path):
    """The cautions of a run of six configurations on four workers; `changed` alters each result by its number."""

    def make(changed):
        trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 7))
        run = synthetic.record(trials)
        results = [changed(synthetic.result(plan, exact=True), number) for number, plan in enumerate(run.planned)]
        synthetic.write_results(tmp_path, run, results)
        return summarize(load(tmp_path)).cautions

    return make


def with_times(result, times):
    return replace(result, steps=replace(result.steps, step_time_sec=times))


def throttled(result, number):
    if result.worker != "worker-4":
        return result
    slow = with_times(result, [second * 1.17 for second in result.steps.step_time_sec])
    return replace(slow, flags=[THROTTLED.format(20 + number)])


def test_a_throttled_worker_is_one_line_with_its_slowness_and_the_reason(cautions_of):
    (caution,) = cautions_of(throttled)
    assert caution.startswith("worker-4 is 17 % slower")
    assert "throttled: hw_thermal_slowdown in 43 % of samples (6 of 6 trials)" in caution


def test_the_most_important_is_first(cautions_of):
    def also_flagged(result, number):
        result = throttled(result, number)
        return replace(result, flags=["process 7 was on the GPU"]) if number == 0 else result

    cautions = cautions_of(also_flagged)
    assert cautions[0].startswith("worker-4 is 17 % slower")
    assert cautions[1] == "rank-1.worker-1: process 7 was on the GPU"


def test_flags_that_differ_in_their_numbers_are_one_line(cautions_of):
    def flagged(result, number):
        return (
            replace(result, flags=[f"driver 550.54.15, {THROTTLED.format(number + 1)}"])
            if result.worker in ("worker-1", "worker-2")
            else result
        )

    (caution,) = cautions_of(flagged)
    assert caution.startswith("12 trials on worker-1, worker-2: ")
    assert caution.endswith("throttled: hw_thermal_slowdown in 22 % of samples")


def test_slow_steps_are_reported_with_their_cost(cautions_of):
    def slow(result, number):
        times = [*result.steps.step_time_sec]
        times[5] *= 2.0
        return with_times(result, times) if number < 4 else result

    (caution,) = cautions_of(slow)
    assert re.match(r"Slow steps .* rank-1 .* 6\.[23] %;", caution)
    assert "dollars and energy" in caution


def test_stopped_and_lost_trials_are_reported_with_the_command_that_retries_them(cautions_of):
    ends = {1: TrialStatus.LOST, 2: TrialStatus.PREEMPTED, 3: TrialStatus.FAILED}
    failed, stopped = cautions_of(
        lambda result, number: replace(result, status=ends.get(number, TrialStatus.SUCCEEDED))
    )
    assert failed.startswith("3 of 24 planned trials ")
    assert stopped.startswith("2 trials ")
    assert f"; `inv bench --resume={synthetic.RUN_ID}` " in stopped


def test_a_run_without_a_success_has_no_caution_about_the_others(cautions_of):
    assert cautions_of(lambda result, _: replace(result, status=TrialStatus.FAILED)) == ()


def test_facts_that_a_cancelled_trial_did_not_report_are_not_compared(cautions_of):
    def cancelled(result, number):
        if number != 3:
            return result
        return replace(
            result, status=TrialStatus.CANCELLED, reason="Ctrl-C", fingerprint={"python": "3.11.7"}, steps=Steps()
        )

    caution, _ = cautions_of(cancelled)
    assert caution.startswith("1 of 24 planned trials ")


def test_configurations_on_other_workers_than_the_baseline_are_named(tmp_path):
    run = synthetic.record(workers=2, spread="shard")
    synthetic.write_run(tmp_path, run, exact=True)
    (caution,) = (caution for caution in summarize(load(tmp_path)).cautions if "--spread replicate" in caution)
    assert caution.startswith("optimized ran on other workers than baseline; ")
    assert "2 %" in caution


def test_a_drift_that_was_taken_off_is_said_with_its_interval_where_it_is_notable():
    def sentences(change):
        """Describe runs of four equal configurations on three workers that become slower."""
        random, described = np.random.default_rng(4), {label: [] for label in "abcd"}
        for worker, order in (("w0", "abcd"), ("w1", "cdba"), ("w2", "bdac")):
            for turn, label in enumerate(order):
                times = 0.2 * np.exp(change * turn / 3.0 + random.normal(0.0, 0.002, 20))
                described[label].append(replace(steps(worker, times), at_sec=40.0 * turn))
        measured = {label: describe(each) for label, each in described.items()}
        return [warning.text for warning in warnings._drift_warnings(measured)]

    (text,) = sentences(0.05)
    change, low, high = map(float, re.findall(r"[0-9.]+(?= %| to)", text))
    assert low < 5.1 < high
    assert low <= change <= high
    assert sentences(0.005) == []


def jumping(random, distance, share, count=30):
    return 0.2 * np.exp(random.normal(0.0, 0.003, count) + distance * (random.random(count) < share))


def test_steps_that_jump_between_two_clocks_are_detected_and_others_are_not():
    random = np.random.default_rng(5)
    for distance, percent in ((0.04, 4.0), (0.3, 35.0)):
        two = describe([steps("a", tuple(jumping(random, distance, 0.4)), process=str(n)) for n in range(200)])
        assert sum(process.levels_percent is not None for process in two) >= 180
        distances = [process.levels_percent for process in two if process.levels_percent]
        assert np.median(distances) == pytest.approx(percent, abs=0.3)
    one_level = [jumping(random, 0.0, 0.0) * np.exp(0.004 * random.gamma(2.0, 1.0, 30)) for _ in range(200)]
    rare = [np.where(random.random(30) < 0.06, 1.5, 1.0) * times for times in one_level]
    calm = describe([steps("a", tuple(times), process=str(n)) for n, times in enumerate((*one_level, *rare))])
    assert sum(process.levels_percent is not None for process in calm) <= 8


@pytest.mark.parametrize(
    ("out_of_memory", "status", "warned", "unfit"),
    [
        (("rank-3",), TrialStatus.OUT_OF_MEMORY, False, "rank-3"),
        (("rank-3",), TrialStatus.FAILED, True, ""),
        (("rank-3.worker-2",), TrialStatus.OUT_OF_MEMORY, True, ""),  # the others fit
        (("rank-1",), TrialStatus.OUT_OF_MEMORY, True, ""),  # the baseline
    ],
)
def test_a_configuration_that_never_fits_is_a_result_and_no_warning(tmp_path, out_of_memory, status, warned, unfit):
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 7))
    run = synthetic.record(trials)
    synthetic.write_run(tmp_path, run)
    for plan in run.planned:
        if plan.trial_id.startswith(out_of_memory):
            synthetic.rewrite(tmp_path, plan, status=status, reason="memory", steps=0)
    summary = summarize(load(tmp_path))
    assert any("did not succeed" in caution or "gave no" in caution for caution in summary.cautions) is warned
    assert warnings.describe_unfit(summary.rows, summary.others, summary.baseline).split(" ")[0] == unfit


def test_a_slow_worker_is_distinguished_from_a_slow_configuration():
    table = [(n, n, n + 0.17) for n in (0.0, 1.0, 2.0, 3.0)] + [(2.0, 2.5, 2.17)]
    cells = {f"c{row}": {f"w{number}": log for number, log in enumerate(logs)} for row, logs in enumerate(table)}
    assert slower_workers(cells) == {"w0": 0.0, "w1": 0.0, "w2": pytest.approx(0.17)}
    assert slower_workers({"c0": {"w0": 0.0, "w1": 0.17}}) == {}
