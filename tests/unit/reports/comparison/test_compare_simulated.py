"""Comparison of simulated runs: false alarms are rare, and a slowdown of 3 % is detected at the default repeats.

The default repeats are those of `inv bench --quick`: 2 configurations, replicated on 4 workers; here with 20 steps
(profile gpu measures 30). The noise is `noise.ON_A_GPU`: processes 0.35 %, workers 1 %, autocorrelated steps 0.5 %,
outliers and drift. Each simulated run is a loaded run, compared by the function that `inv compare` calls.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.records.status import TrialStatus
from reports.comparison.compare import STEADY, compare
from reports.read.load import load
from tests.benchmarks.statistics_power import has_alarm, share
from tests.support.reports import synthetic
from tests.support.reports.noise import ON_A_GPU, Noise
from tests.support.thorough import examples

pytestmark = pytest.mark.slow

RUNS = examples(400)
STEPS = 20


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Two loaded runs; each worker has the same GPU in both, by environment.json."""
    runs = []
    for name in ("before", "after"):
        folder: Path = tmp_path_factory.mktemp(name)
        trials = tuple(replace(trial, measured_steps=STEPS, profile="gpu") for trial in synthetic.quick())
        record = synthetic.record(trials, run_id=name, profile="gpu", fleet_kind="kubernetes")
        fingerprint = synthetic.fingerprint(device="cuda", gpu_name="NVIDIA A10", gpu_driver="580.95")
        for plan in record.planned:
            path = synthetic.rewrite(folder, plan, exact=True, run_id=name, fingerprint=fingerprint)
            gpu = {"uuid": f"GPU-{plan.worker}", "driver": "580.95"}
            path.with_name("environment.json").write_text(json.dumps({"kind": "environment", "gpus": [gpu]}))
        record.write(folder)
        runs.append(load(folder))
    return runs


def with_new_steps(run, slower_by, speeds, noise, random):
    """Draw other steps for a run. `slower_by` maps a configuration to a fraction, `speeds` a worker to its own."""
    results = []
    for result in run.results:
        middle = speeds[result.worker] + np.log1p(slower_by.get(result.trial.name, 0.0))
        times = 0.2 * np.exp(noise.process(random, STEPS, middle))
        results.append(replace(result, steps=replace(result.steps, step_time_sec=times.tolist())))
    return replace(run, results=tuple(results))


def comparisons(two_runs, slower_by, noise, *, same_gpus=True, seed=1, runs=RUNS):
    """Yield comparisons of `runs` pairs of simulated runs."""
    random = np.random.default_rng(seed)
    workers = two_runs[0].record.workers
    for _ in range(runs):
        speeds = {worker: random.normal(0.0, noise.workers) for worker in workers}
        later_speeds = speeds if same_gpus else {worker: random.normal(0.0, noise.workers) for worker in workers}
        yield compare(
            [with_new_steps(two_runs[0], {}, speeds, noise, random)],
            [with_new_steps(two_runs[1], slower_by, later_speeds, noise, random)],
        )


@pytest.fixture(scope="module")
def equal(two_runs):
    """Comparisons of runs with equal speeds."""
    return list(comparisons(two_runs, {}, ON_A_GPU))


def test_equal_runs_raise_a_false_alarm_in_at_most_five_percent(equal):
    assert share(equal, has_alarm) <= 0.05


def test_equal_runs_are_called_the_same_and_pass(equal):
    def is_same(comparison):
        return {row.verdict for row in comparison.rows if row.metric == STEADY} == {"same"}

    assert share(equal, is_same) >= 0.9
    assert share(equal, lambda comparison: comparison.exit_code == 0) >= 0.9


def test_a_slowdown_of_three_percent_is_found_in_nine_of_ten(two_runs):
    compared = list(comparisons(two_runs, {"optimized": 0.03}, ON_A_GPU, seed=4))

    def is_detected(comparison):
        slow = {row.configuration for row in comparison.rows if row.verdict == "slower"}
        return slow == {"optimized"} and comparison.exit_code == 1

    assert share(compared, is_detected) >= 0.9


def test_workers_three_percent_apart_do_not_hide_a_slowdown_on_the_same_gpus(two_runs):
    noise = replace(ON_A_GPU, workers=0.03)
    assert share(comparisons(two_runs, {}, noise, seed=3), has_alarm) <= 0.05
    slow = comparisons(two_runs, {"baseline": 0.03, "optimized": 0.03}, noise, seed=8, runs=examples(100))
    assert share(slow, lambda comparison: comparison.exit_code == 1) >= 0.9


def test_a_slowdown_hidden_by_noise_is_unknown_and_equal_runs_are_not_called_slower(two_runs):
    noise = Noise(processes=0.02)  # six times what was measured, on steps four times as noisy
    missed = list(comparisons(two_runs, {"optimized": 0.03}, noise, seed=5, runs=examples(200)))
    verdicts = [row.verdict for comparison in missed for row in comparison.rows if row.configuration == "optimized"]
    assert verdicts.count("slower") < 0.5 * len(verdicts)
    assert verdicts.count("unknown") > 0.4 * len(verdicts)
    assert share(comparisons(two_runs, {}, noise, seed=6), has_alarm) <= 0.05


@pytest.fixture
def other_gpus(two_runs):
    """The two runs with other GPUs for the second run's workers."""
    files = list(two_runs[1].folder.glob("trials/*/environment.json"))
    before = [path.read_text() for path in files]
    for path, text in zip(files, before, strict=True):
        path.write_text(text.replace("GPU-", "GPU-other-"))
    yield two_runs
    for path, text in zip(files, before, strict=True):
        path.write_text(text)


def test_on_other_gpus_of_the_same_kind_false_alarms_stay_rare(other_gpus):
    assert share(comparisons(other_gpus, {}, ON_A_GPU, same_gpus=False, seed=7), has_alarm) <= 0.05


def test_every_simulated_trial_counts(two_runs):
    (comparison,) = comparisons(two_runs, {}, ON_A_GPU, runs=1)
    assert {row.after.n_processes for row in comparison.rows} == {4}
    assert {row.configuration for row in comparison.rows} == {"baseline", "optimized"}
    assert all(result.status is TrialStatus.SUCCEEDED for result in two_runs[0].results)
