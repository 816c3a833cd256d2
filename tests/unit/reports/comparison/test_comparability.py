"""Comparability of runs: each named condition is reported if it differs, and only then."""

import json

import pytest

from bench.records.status import TrialStatus
from reports.comparison.comparability import NAMES, ConditionDifference, find_differences, read_conditions, same_gpus
from reports.read.run_folder import load
from tests.support.cases import load_cases
from tests.support.reports import synthetic

GPU = {"device": "cuda", "gpu_name": "NVIDIA A10", "gpu_memory_bytes": 23_680_000_000, "gpu_driver": "580.95"}


def environment(**changed):
    return {
        "kind": "environment",
        "lock_digest": "lock-a",
        "gpus": [{"uuid": "GPU-1", "power_limit_watts": 150, "max_sm_clock_mhz": 1695, "ecc": True}],
        "packages": {"torch": "2.11.0", "numpy": "2.0"},
        "variables": {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"},
    } | changed


def run(folder, run_id, *, facts=None, full=None, profile="gpu", fleet_kind="kubernetes", trials=None, changed=None):
    """Write a run and read its conditions.

    `facts` are added to its fingerprints; `full` is its environment.json; `changed(plan, fingerprint)` returns changes
    of a trial's result.
    """
    record = synthetic.record(trials, run_id=run_id, workers=2, profile=profile, fleet_kind=fleet_kind)
    folder.mkdir(exist_ok=True)
    record.write(folder)
    for plan in record.planned:
        fingerprint = synthetic.fingerprint(**GPU | {"data_sha256": "d" * 8} | (facts or {}))
        options = {"fingerprint": fingerprint} | (changed(plan, fingerprint) if changed else {})
        path = synthetic.rewrite(folder, plan, run_id=run_id, **options)
        if full is not None:
            path.with_name("environment.json").write_text(full if isinstance(full, str) else json.dumps(full))
    return read_conditions(load(folder))


@pytest.fixture
def make_two(tmp_path):
    """A function that writes runs a and b, with other options for each."""

    def make(first=None, second=None):
        runs = {"a": first or {}, "b": second or {}}
        return [run(tmp_path / name, name, **{"full": environment()} | options) for name, options in runs.items()]

    return make


def test_equal_conditions_do_not_differ_and_equal_gpus_are_identified_by_uuid(make_two):
    both = make_two()
    assert find_differences(both) == ()
    assert same_gpus(*both)


@pytest.mark.parametrize("case", load_cases(__file__, "conditions.yaml"))
def test_each_condition_that_differs_is_named_with_both_values(make_two, case):
    """`software` and `full` of a side change its environment.json."""
    sides = []
    for options in case["input"]:
        software = {"lock_digest": None, **options["software"]} if "software" in options else {}
        full = environment(**software, **options.get("full", {}))
        sides.append({**{key: value for key, value in options.items() if key != "software"}, "full": full})
    differences = find_differences(make_two(*sides))
    assert [difference.name for difference in differences] == case["expected"]
    for difference in differences:
        assert [run_id for run_id, _ in difference.values] == ["a", "b"]
        assert difference.description.startswith(f"{difference.name}: a ")
        assert difference.values[0][1] != difference.values[1][1]


def test_a_digest_is_shortened_in_the_description_only():
    values = (("a", ("1" * 64,)), ("b", ("2" * 64,)))
    difference = ConditionDifference(name="weights", values=values)
    assert difference.description == f"weights: a {'1' * 12}, b {'2' * 12}"


def test_a_run_on_two_kinds_of_gpu_differs_from_itself(tmp_path):
    def on_two(plan, fingerprint):
        return {"fingerprint": fingerprint | {"gpu_name": f"NVIDIA {plan.worker}"}}

    (difference,) = find_differences([run(tmp_path, "a", changed=on_two)])
    assert difference.name == "gpu"
    assert len(difference.values[0][1]) == 2


def failed_early(plan, _):
    is_first = plan.trial_id == "baseline.worker-1"
    return {"status": TrialStatus.FAILED, "reason": "x", "fingerprint": {"python": "3.9"}} if is_first else {}


def without_weights(plan, fingerprint):
    known = {name: value for name, value in fingerprint.items() if name != "model_sha256"}
    return {"fingerprint": known} if plan.trial.kind == "hardware" else {}


@pytest.mark.parametrize("changed", [failed_early, without_weights])
def test_a_trial_that_does_not_report_a_fact_makes_no_difference(tmp_path, changed):
    trials = (*synthetic.quick(), synthetic.trial("hardware", kind="hardware"))
    assert find_differences([run(tmp_path, "a", trials=trials, changed=changed)]) == ()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"kind": "other"}', '{"kind": "environment", "gpus": 4}'])
def test_a_damaged_environment_file_counts_as_missing(tmp_path, content):
    conditions = run(tmp_path, "a", full=content)
    assert conditions.gpus_by_worker == {}
    assert set(conditions.values) == set(NAMES)


def test_other_gpus_of_the_same_kind_and_gpus_without_uuids_are_comparable_but_not_the_same(make_two, tmp_path):
    other = environment(gpus=[environment()["gpus"][0] | {"uuid": "GPU-2"}])
    both = make_two(second={"full": other})
    assert find_differences(both) == ()
    assert not same_gpus(*both)
    unknown = run(tmp_path / "c", "c")
    assert not same_gpus(unknown, unknown)
