"""Warnings: one per cause, the most important first, with the worker concerned."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bench.records.result import Steps
from bench.records.status import TrialStatus
from reports.output import data_files
from reports.read.run_folder import load
from reports.statistics.per_process import describe
from reports.summary import sentences, warnings
from reports.summary.summarize import summarize
from reports.summary.warnings import WarningCode, slower_workers
from tests.support.reports import synthetic
from tests.support.reports.scenarios import steps

THROTTLED = "throttled: hw_thermal_slowdown in {} % of samples"


@pytest.fixture
def warnings_of(tmp_path):
    """The warnings of a run of six configurations on four workers; `changed` alters each result by its number."""

    def make(changed):
        trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 7))
        run = synthetic.record(trials)
        results = [changed(synthetic.result(plan, exact=True), number) for number, plan in enumerate(run.planned)]
        synthetic.write_results(tmp_path, run, results)
        return summarize(load(tmp_path)).warnings

    return make


def with_times(result, times):
    return replace(result, steps=replace(result.steps, step_time_sec=times))


def throttled(result, number):
    if result.worker != "worker-4":
        return result
    slow = with_times(result, [second * 1.17 for second in result.steps.step_time_sec])
    return replace(slow, flags=[THROTTLED.format(20 + number)])


def test_a_throttled_worker_is_one_warning_with_its_slowness_and_the_reason_and_comes_first(warnings_of):
    def also_flagged(result, number):
        result = throttled(result, number)
        return replace(result, flags=["process 7 was on the GPU"]) if number == 0 else result

    warning, second = warnings_of(also_flagged)
    assert (warning.code, warning.values["worker"]) == (WarningCode.SLOW_WORKER, "worker-4")
    assert warning.values["share"] == pytest.approx(0.17)
    assert warning.values["causes"] == {THROTTLED.format(43): 6}
    assert sentences.warning_text(warning).startswith("worker-4 is 17 % slower")
    assert sentences.warning_text(second) == "rank-1.worker-1: process 7 was on the GPU"


def test_flags_that_differ_in_their_numbers_are_one_warning(warnings_of):
    def flagged(result, number):
        flags = [f"driver 550.54.15, {THROTTLED.format(number + 1)}"]
        return replace(result, flags=flags if result.worker in ("worker-1", "worker-2") else [])

    (warning,) = warnings_of(flagged)
    assert (len(warning.values["trials"]), warning.values["workers"]) == (12, ["worker-1", "worker-2"])
    assert warning.values["flag"].endswith("22 % of samples")


def test_slow_steps_are_a_warning_with_their_share(warnings_of):
    def slow(result, number):
        times = [*result.steps.step_time_sec]
        times[5] *= 2.0
        return with_times(result, times) if number < 4 else result

    (warning,) = warnings_of(slow)
    assert (warning.code, warning.values["labels"]) == (WarningCode.SLOW_STEPS, ["rank-1"])
    assert warning.values["share"] == pytest.approx(1 / 16)


def test_stopped_and_lost_trials_are_a_warning_with_the_command_that_retries_them(warnings_of):
    ends = {1: TrialStatus.LOST, 2: TrialStatus.PREEMPTED, 3: TrialStatus.FAILED}

    def ended(result, number):
        # What such a trial did not report is not compared.
        facts = {"status": ends.get(number), "fingerprint": {"python": "3.11.7"}, "steps": Steps()}
        return replace(result, **facts) if number in ends else result

    failed, stopped = warnings_of(ended)
    assert (failed.code, failed.values["trials"], failed.values["planned"]) == (WarningCode.INCOMPLETE, 3, 24)
    assert (stopped.code, stopped.values["trials"]) == (WarningCode.STOPPED, 2)
    assert f"`inv bench --resume={synthetic.RUN_ID}` " in sentences.warning_text(stopped)
    # In a run without a success there are no others to warn about.
    assert warnings_of(lambda result, _: replace(result, status=TrialStatus.FAILED)) == ()


def on_gpus(plan):
    gpus = {"optimized.worker-1": "NVIDIA A10", "optimized.worker-2": "NVIDIA H200"}
    return {"device": "cuda", "gpu_name": gpus[plan.trial_id]} if plan.trial_id in gpus else {}


@pytest.mark.parametrize(
    ("facts", "record", "code", "values"),
    [
        (on_gpus, {}, WarningCode.DEVICES, {"devices": ["CPU", "NVIDIA A10", "NVIDIA H200"]}),
        (
            lambda plan: {"recipe": "stock" if plan.worker == "worker-4" else "fast"},
            *({}, WarningCode.CONDITIONS, {"keys": ["recipe"]}),
        ),
        (
            lambda _: {"cpu_allowed_cores": 2},
            *({}, WarningCode.CONTENTION, {"workers": 4, "threads": 1, "cores": 2}),
        ),
        (lambda _: {"cpu_allowed_cores": 1}, {"fleet_kind": "kubernetes"}, None, None),  # machines of their own
    ],
)
def test_machines_that_differ_or_have_too_few_cores_are_a_warning(tmp_path, facts, record, code, values):
    run = synthetic.exact_run(tmp_path, **record)
    for plan in run.planned:
        synthetic.rewrite(tmp_path, plan, exact=True, fingerprint=synthetic.fingerprint(**facts(plan)))
    known = {warning.code: warning.values for warning in summarize(load(tmp_path)).warnings}
    assert known.get(code) == values if code else known == {}


def test_a_failed_baseline_and_a_slow_worker_are_a_warning(tmp_path):
    run = synthetic.exact_run(tmp_path)
    slow = synthetic.plan_of(run, "baseline.worker-2")
    synthetic.rewrite(tmp_path, slow, exact=True, step_time_sec=0.16 * 1.5)
    (spread,) = (each for each in summarize(load(tmp_path)).warnings if each.code is WarningCode.SPREAD)
    assert (spread.values["label"], spread.values["ratio"]) == ("baseline", pytest.approx(1.5))
    for plan in run.planned[:4]:
        synthetic.rewrite(tmp_path, plan, status=TrialStatus.TIMED_OUT, reason="too slow")
    summary = summarize(load(tmp_path))
    assert WarningCode.NO_BASELINE in {warning.code for warning in summary.warnings}
    assert {row.samples_ratio for row in summary.rows} == {None}


def test_every_warning_has_a_sentence(a10):
    assert set(sentences._WARNINGS) == set(WarningCode)
    assert json.loads(data_files.summary_json(a10[0]))["warnings"] == []


def test_a_drift_that_was_taken_off_is_said_with_its_interval_where_it_is_notable():
    def drifts(change):
        """Find the drift of runs of four equal configurations on three workers that become slower."""
        random, described = np.random.default_rng(4), {label: [] for label in "abcd"}
        for worker, order in (("w0", "abcd"), ("w1", "cdba"), ("w2", "bdac")):
            for turn, label in enumerate(order):
                times = 0.2 * np.exp(change * turn / 3.0 + random.normal(0.0, 0.002, 20))
                described[label].append(replace(steps(worker, times), at_sec=40.0 * turn))
        return list(warnings.drift_warnings({label: describe(each) for label, each in described.items()}))

    (warning,) = drifts(0.05)
    assert warning.values["low"] < 5.1 < warning.values["high"]
    assert warning.values["low"] <= warning.values["change"] <= warning.values["high"]
    assert drifts(0.005) == []


@pytest.mark.parametrize(
    ("out_of_memory", "status", "warned", "unfit"),
    [
        (("rank-3",), TrialStatus.OUT_OF_MEMORY, False, ["rank-3"]),
        (("rank-3",), TrialStatus.FAILED, True, []),
        (("rank-3.worker-2",), TrialStatus.OUT_OF_MEMORY, True, []),  # the others fit
        (("rank-1",), TrialStatus.OUT_OF_MEMORY, True, []),  # the baseline
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
    assert (WarningCode.INCOMPLETE in {warning.code for warning in summary.warnings}) is warned
    assert summary.unfit_labels == unfit


def test_a_slow_worker_is_distinguished_from_a_slow_configuration():
    table = [(n, n, n + 0.17) for n in (0.0, 1.0, 2.0, 3.0)] + [(2.0, 2.5, 2.17)]
    cells = {f"c{row}": {f"w{number}": log for number, log in enumerate(logs)} for row, logs in enumerate(table)}
    assert slower_workers(cells) == {"w0": 0.0, "w1": 0.0, "w2": pytest.approx(0.17)}
    assert slower_workers({"c0": {"w0": 0.0, "w1": 0.17}}) == {}
