"""Comparing in simulation: false alarms stay rare, and a slowdown of 3 % is found at the default repeats.

The default repeats are those of `inv bench --quick` as shipped: 2 configurations, replicated on 4 workers; with 20
steps, where profile gpu measures 30. Noise is `noise.ON_A_GPU`: processes 0.35 % apart, workers 1 %, steps 0.5 % that
resemble their neighbours, outliers and drift. Every simulated run is a run as loaded, compared by the function that
`inv compare` calls.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.records.result import TrialStatus
from reports.comparison.compare import compare
from reports.read.load import load
from tests.benchmarks.statistics_power import has_alarm, share
from tests.support.reports import synthetic
from tests.support.reports.noise import ON_A_GPU, Noise
from tests.support.thorough import examples

pytestmark = pytest.mark.slow

RUNS = examples(400)
STEPS = 20


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """Two runs as loaded; each worker has the same GPU in both, as environment.json says."""
    runs = []
    for name in ("before", "after"):
        folder: Path = tmp_path_factory.mktemp(name)
        trials = tuple(replace(one, measured_steps=STEPS, profile="gpu") for one in synthetic.quick())
        record = synthetic.record(trials, run_id=name, profile="gpu", fleet_kind="kubernetes")
        told = synthetic.fingerprint(device="cuda", gpu_name="NVIDIA A10", gpu_driver="580.95")
        for plan in record.planned:
            path = synthetic.rewrite(folder, plan, exact=True, run_id=name, fingerprint=told)
            gpu = {"uuid": f"GPU-{plan.worker}", "driver": "580.95"}
            path.with_name("environment.json").write_text(json.dumps({"kind": "environment", "gpus": [gpu]}))
        record.write(folder)
        runs.append(load(folder))
    return runs


def drawn_anew(run, slower_by, speeds, noise, random):
    """The run with other steps. `slower_by` maps a configuration to a share, `speeds` a worker to its own."""
    results = []
    for result in run.results:
        middle = speeds[result.worker] + np.log1p(slower_by.get(result.trial.name, 0.0))
        times = 0.2 * np.exp(noise.process(random, STEPS, middle))
        results.append(replace(result, steps=replace(result.steps, step_time_sec=times.tolist())))
    return replace(run, results=tuple(results))


def comparisons(laid_out, slower_by, noise, *, same_gpus=True, seed=1, runs=RUNS):
    """Comparisons of `runs` pairs of simulated runs."""
    random = np.random.default_rng(seed)
    workers = laid_out[0].record.workers
    for _ in range(runs):
        speeds = {worker: random.normal(0.0, noise.workers) for worker in workers}
        again = speeds if same_gpus else {worker: random.normal(0.0, noise.workers) for worker in workers}
        yield compare(
            [
                drawn_anew(laid_out[0], {}, speeds, noise, random),
                drawn_anew(laid_out[1], slower_by, again, noise, random),
            ]
        )


@pytest.fixture(scope="module")
def equal(laid_out):
    """Comparisons of runs between which nothing changed."""
    return list(comparisons(laid_out, {}, ON_A_GPU))


def test_equal_runs_raise_a_false_alarm_in_at_most_five_percent(equal):
    assert share(equal, has_alarm) <= 0.05


def test_equal_runs_are_called_the_same_and_pass(equal):
    assert share(equal, lambda one: all(row.verdict == "same" for row in one.rows)) >= 0.9
    assert share(equal, lambda one: one.exit_code == 0) >= 0.9


def test_a_slowdown_of_three_percent_is_found_in_nine_of_ten(laid_out):
    found = list(comparisons(laid_out, {"optimized": 0.03}, ON_A_GPU, seed=4))

    def finds(one):
        slow = {row.configuration for row in one.rows if row.verdict == "slower"}
        return slow == {"optimized"} and one.exit_code == 1

    assert share(found, finds) >= 0.9


def test_workers_three_percent_apart_hide_nothing_where_they_are_the_same_gpus(laid_out):
    noise = replace(ON_A_GPU, workers=0.03)
    assert share(comparisons(laid_out, {}, noise, seed=3), has_alarm) <= 0.05
    slow = comparisons(laid_out, {"baseline": 0.03, "optimized": 0.03}, noise, seed=8, runs=examples(100))
    assert share(slow, lambda one: one.exit_code == 1) >= 0.9


def test_where_noise_hides_a_slowdown_the_word_is_unknown_and_equal_runs_are_not_called_slower(laid_out):
    noise = Noise(processes=0.02)  # six times what was measured, on steps four times as noisy
    missed = list(comparisons(laid_out, {"optimized": 0.03}, noise, seed=5, runs=examples(200)))
    words = [row.verdict for one in missed for row in one.rows if row.configuration == "optimized"]
    assert words.count("slower") < 0.5 * len(words)
    assert words.count("unknown") > 0.4 * len(words)
    assert share(comparisons(laid_out, {}, noise, seed=6), has_alarm) <= 0.05


@pytest.fixture
def other_gpus(laid_out):
    """The second run's workers have GPUs of their own."""
    files = list(laid_out[1].folder.glob("trials/*/environment.json"))
    before = [path.read_text() for path in files]
    for path, text in zip(files, before, strict=True):
        path.write_text(text.replace("GPU-", "GPU-other-"))
    yield laid_out
    for path, text in zip(files, before, strict=True):
        path.write_text(text)


def test_on_other_gpus_of_the_same_kind_false_alarms_stay_rare(other_gpus):
    assert share(comparisons(other_gpus, {}, ON_A_GPU, same_gpus=False, seed=7), has_alarm) <= 0.05


def test_every_simulated_trial_counts(laid_out):
    (one,) = comparisons(laid_out, {}, ON_A_GPU, runs=1)
    assert {row.after.n_processes for row in one.rows} == {4}
    assert {row.configuration for row in one.rows} == {"baseline", "optimized"}
    assert all(result.status is TrialStatus.SUCCEEDED for result in laid_out[0].results)
