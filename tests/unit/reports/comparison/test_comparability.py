"""What makes runs comparable: every named condition is found where it differs, and only there."""

import json

import pytest

from bench.records.result import TrialStatus
from reports.comparison.comparability import NAMES, conditions, same_gpus, unlike
from reports.read.load import load
from tests.support.reports import synthetic

GPU = {"device": "cuda", "gpu_name": "NVIDIA A10", "gpu_memory_bytes": 23_680_000_000, "gpu_driver": "580.95"}


def environment(**changed):
    return {
        "kind": "environment",
        "lock_digest": "lock-a",
        "gpus": [
            {"uuid": "GPU-1", "driver": "580.95", "power_cap_watts": 150, "clock_max_sm_mhz": 1695, "ecc": "Enabled"}
        ],
        "packages": {"torch": "2.11.0", "numpy": "2.0"},
        "variables": {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"},
    } | changed


def run(folder, run_id, *, told=None, full=None, profile="gpu", fleet_kind="kubernetes", trials=None, changed=None):
    """A run's conditions. `told` is what its fingerprints say, `changed(plan)` what a trial's result has otherwise."""
    record = synthetic.record(trials, run_id=run_id, workers=2, profile=profile, fleet_kind=fleet_kind)
    folder.mkdir(exist_ok=True)
    record.write(folder)
    for plan in record.planned:
        fingerprint = synthetic.fingerprint(**GPU | {"data_sha256": "d" * 8} | (told or {}))
        more = {"fingerprint": fingerprint} | (changed(plan, fingerprint) if changed else {})
        path = synthetic.rewrite(folder, plan, run_id=run_id, **more)
        if full is not None:
            path.with_name("environment.json").write_text(full if isinstance(full, str) else json.dumps(full))
    return conditions(load(folder))


@pytest.fixture
def two(tmp_path):
    def make(first=None, second=None):
        each = {"a": first or {}, "b": second or {}}
        return [run(tmp_path / name, name, **{"full": environment()} | given) for name, given in each.items()]

    return make


def test_equal_conditions_are_alike_and_the_same_gpus_known_by_their_uuids(two):
    found = two()
    assert unlike(found) == ()
    assert same_gpus(*found)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("gpu", {"told": {"gpu_name": "NVIDIA H200"}}),
        ("gpu", {"told": {"gpu_memory_bytes": 47_000_000_000}}),
        ("driver", {"told": {"gpu_driver": "550.54"}}),
        ("weights", {"told": {"model_sha256": "1" * 64}}),
        ("data", {"told": {"data_sha256": "e" * 8}}),
        ("lock", {"full": environment(lock_digest="lock-b")}),
        ("gpu_settings", {"full": environment(gpus=[{"uuid": "GPU-1", "power_cap_watts": 100}])}),
        ("variables", {"full": environment(variables={"OMP_NUM_THREADS": "8"})}),
        ("profile", {"profile": "tiny"}),
    ],
)
def test_each_condition_that_differs_is_named_with_both_values(two, name, changed):
    (found,) = unlike(two(second=changed))
    assert found.name == name
    assert [run_id for run_id, _ in found.values] == ["a", "b"]
    assert found.words.startswith(f"{name}: a ")
    assert found.values[0][1] != found.values[1][1]


def test_without_a_lock_every_packages_version_counts(two):
    whole = environment(lock_digest=None)
    other = environment(lock_digest=None, packages={"torch": "2.11.0", "numpy": "2.1"})
    assert [one.name for one in unlike(two({"full": whole}, {"full": other}))] == ["lock"]


def test_on_a_cpu_the_processor_and_its_threads_count_on_a_gpu_they_do_not(tmp_path):
    def made(name, told):
        return run(tmp_path / name, name, told=told)

    cpu = {"device": "cpu", "gpu_name": None}
    slow, fast = made("a", cpu), made("b", cpu | {"cpu_model": "Another", "torch_threads": 2})
    assert [one.name for one in unlike([slow, fast])] == ["cpu"]
    assert unlike([made("c", {}), made("d", {"cpu_model": "Another"})]) == ()


def test_on_one_machine_the_number_of_workers_counts(tmp_path):
    cpu = {"device": "cpu", "gpu_name": None}
    here = run(tmp_path / "a", "a", told=cpu, fleet_kind="local")
    apart = run(tmp_path / "b", "b", told=cpu)
    assert [one.name for one in unlike([here, apart])] == ["workers"]


def test_a_run_on_two_kinds_of_gpu_is_not_like_itself(tmp_path):
    def on_two(plan, fingerprint):
        return {"fingerprint": fingerprint | {"gpu_name": f"NVIDIA {plan.worker}"}}

    (found,) = unlike([run(tmp_path, "a", changed=on_two)])
    assert found.name == "gpu"
    assert len(found.values[0][1]) == 2


def test_a_failed_trial_that_knew_nothing_yet_does_not_make_a_run_unlike(tmp_path):
    def failed(plan, _):
        if plan.trial_id != "baseline.worker-1":
            return {}
        return {"status": TrialStatus.FAILED, "reason": "x", "fingerprint": {"python": "3.9"}}

    assert unlike([run(tmp_path, "a", changed=failed)]) == ()


def test_a_kind_of_trial_that_needs_no_weights_does_not_make_a_run_unlike(tmp_path):
    def without_weights(plan, fingerprint):
        needs_none = plan.trial.kind == "hardware"
        return {"fingerprint": {k: v for k, v in fingerprint.items() if k != "model_sha256"}} if needs_none else {}

    trials = (*synthetic.quick(), synthetic.trial("hardware", kind="hardware"))
    assert unlike([run(tmp_path, "a", trials=trials, changed=without_weights)]) == ()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"kind": "other"}', '{"kind": "environment", "gpus": 4}'])
def test_a_damaged_environment_file_is_as_good_as_none(tmp_path, content):
    found = run(tmp_path, "a", full=content)
    assert found.gpus_of == {}
    assert set(found.values) == set(NAMES)


def test_other_gpus_of_the_same_kind_are_alike_but_not_the_same(two):
    other = environment(gpus=[environment()["gpus"][0] | {"uuid": "GPU-2"}])
    found = two(second={"full": other})
    assert unlike(found) == ()
    assert not same_gpus(*found)


def test_without_uuids_nothing_is_known_to_be_the_same(tmp_path):
    one = run(tmp_path / "a", "a")
    assert not same_gpus(one, one)
