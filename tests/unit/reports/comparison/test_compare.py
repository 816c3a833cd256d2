"""Comparison of runs on disk: conditions by name, verdicts, exit codes, and runs that cannot be compared."""

import json
import math
import re
import statistics
from dataclasses import replace

import pytest

from bench.records.result import Steps
from bench.records.status import ExitCode, TrialStatus
from reports.comparison.comparability import NAMES, ConditionDifference, find_differences, read_conditions, same_gpus
from reports.comparison.compare import CompareError, compare, to_json
from reports.read.run_folder import load
from tests.support.cases import load_cases
from tests.support.reports import synthetic

HOSTILE = "=cmd|' /C calc'!A0 <script>alert(1)</script>"


def write(folder, run_id, speeds, *, trials=None, workers=4, shake=0.002, changed=lambda result: result, **more):
    """Write a run whose workers differ a little, but not its steps; `speeds` maps a trial's name to its step time."""
    record = synthetic.record(trials, run_id=run_id, workers=workers, **more)
    results = []
    for plan in record.planned:
        offset = record.workers.index(plan.worker) - (workers - 1) / 2
        seconds = speeds.get(plan.trial.name, 0.2) * math.exp(shake * offset)
        results.append(changed(synthetic.result(plan, step_time_sec=seconds, exact=True, run_id=run_id)))
    synthetic.write_results(folder, record, results)
    return load(folder)


@pytest.fixture
def runs(tmp_path):
    """Runs a, b, ... by their speeds; `later` are other options of all but the first."""

    def make(*speeds, later=None, **more):
        return [
            write(tmp_path / name, name, speeds_of_run, **more | ((later or {}) if name > "a" else {}))
            for name, speeds_of_run in zip("abcdef", speeds, strict=False)
        ]

    return make


def pair(both, **options):
    """Compare the second run with the first."""
    return compare(both[:1], both[1:], **options)


def verdicts(comparison):
    return {row.configuration: row.verdict for row in comparison.rows if not row.metric.startswith("elapsed_")}


def test_a_slower_configuration_is_named_and_fails(runs):
    comparison = pair(runs({}, {"optimized": 0.22}))
    assert verdicts(comparison) == {"baseline": "same", "optimized": "slower"}
    assert comparison.exit_code == 1
    rates = {row.metric: row for row in comparison.slower}
    assert set(rates) == {"elapsed_useful_tokens_per_sec", "steady_useful_tokens_per_sec"}
    row = rates["elapsed_useful_tokens_per_sec"]
    assert row.speed_ratio == pytest.approx(0.2 / 0.22)
    assert row.low < row.speed_ratio < row.high < 1.0
    assert row.p_corrected == pytest.approx(4 * row.p_value)  # two rates of two configurations
    assert row.p_corrected < 0.05
    before = row.before
    assert (before.n_runs, before.n_workers, before.n_processes) == (1, 4, 4)


@pytest.mark.parametrize(
    ("speed", "options", "verdict", "exit_code"),
    [
        (0.18, {}, "faster", 0),
        (0.206, {"tolerance": 0.04}, "slower", 0),
        (0.206, {}, "slower", 1),
        (0.2016, {}, "differs", ExitCode.UNDECIDED),  # 0.8 %, as two days of equal code may
        (0.1984, {}, "differs", 0),  # not slower, whatever the day did
        (0.2024, {"day_effect_percent": 0.0}, "slower", 1),
        (0.206, {"day_effect_percent": 4.0}, "differs", ExitCode.UNDECIDED),
    ],
)
def test_between_two_runs_only_a_difference_beyond_the_day_is_one_of_speed(runs, speed, options, verdict, exit_code):
    comparison = pair(runs({}, {"optimized": speed}, shake=1e-4), **options)
    assert (verdicts(comparison)["optimized"], comparison.exit_code) == (verdict, exit_code)


def test_four_earlier_runs_show_the_effect_of_the_day(runs):
    """Earlier runs are 3 % apart, so 2 % between two runs may be the day; without them it is a difference."""
    first, second, *earlier = runs({}, {"optimized": 0.204}, {}, {"optimized": 0.206}, {"optimized": 0.203}, shake=1e-4)
    assert verdicts(pair([first, second], earlier=[first, *earlier[:2]]))["optimized"] == "slower"
    compared = pair([first, second], earlier=[first, *earlier])
    row = next(row for row in compared.rows if row.configuration == "optimized")
    deviation = statistics.stdev([math.log(seconds) for seconds in (0.2, 0.2, 0.206, 0.203)])
    assert math.log1p(row.day_percent / 100.0) == pytest.approx(3.182446 * 2**0.5 * deviation, rel=1e-5)
    assert row.verdict == "differs"


def test_several_runs_on_each_side_measure_the_day_themselves(runs):
    speeds = [{"optimized": 0.2 * math.exp(log)} for log in (0.001, -0.001, 0.0, 0.031, 0.029, 0.03)]
    all_runs = runs(*speeds)
    comparison = compare(all_runs[:3], all_runs[3:])
    row = next(row for row in comparison.rows if row.configuration == "optimized")
    half = 2.776445 * 0.001 * (2 / 3) ** 0.5  # four degrees of freedom, three runs on each side
    assert (row.speed_ratio, row.low) == pytest.approx((math.exp(-0.03), math.exp(-0.03 - half)), rel=1e-5)
    assert (row.verdict, row.day_percent, row.before.n_runs) == ("slower", 0.0, 3)
    assert comparison.exit_code == 1
    noisy = compare([all_runs[0], all_runs[3]], [all_runs[1], all_runs[4]])
    assert verdicts(noisy)["optimized"] == "unknown"  # runs of one side are as far apart as the sides


def test_a_single_process_in_a_run_is_unknown_and_not_comparable(runs):
    both = runs({}, {"optimized": 0.4}, workers=1)
    comparison = pair(both)
    assert set(verdicts(comparison).values()) == {"unknown"}
    assert all("single process" in row.why for row in comparison.rows)
    assert all(row.p_value is None for row in comparison.rows)
    assert comparison.exit_code == ExitCode.UNDECIDED
    assert pair(both, allow=["unknown"]).exit_code == 0


@pytest.mark.parametrize("fleet", [["any"], ["w1", "w2"]], ids=["an unknown machine", "the other one of the same two"])
def test_repeats_on_one_machine_do_not_show_a_difference_to_another(tmp_path, fleet):
    both = []
    for name in "ab":
        record = synthetic.record(run_id=name, workers=fleet[:1])
        plans = [
            replace(
                plan, trial_id=f"{plan.trial_id}.{turn}", worker=fleet[(2 * turn + order + (name == "b")) % len(fleet)]
            )
            for turn in range(3)
            for order, plan in enumerate(record.planned)
        ]
        results = []
        for number, plan in enumerate(plans):
            worker = plan.worker
            gpu = {} if worker == "any" else {"device": "cuda", "gpu_name": "NVIDIA A10", "gpu_uuid": f"GPU-{worker}"}
            options = {"step_time_sec": 0.2 + number * 1e-4, "fingerprint": synthetic.fingerprint(**gpu)}
            results.append(synthetic.result(plan, worker=worker, exact=True, run_id=name, **options))
        synthetic.write_results(tmp_path / name, replace(record, planned=plans), results)
        both.append(load(tmp_path / name))
    comparison = pair(both)
    assert {row.verdict for row in comparison.rows} == {"unknown"}
    assert "single worker" in comparison.rows[0].why
    assert comparison.rows[0].before.n_processes == 3


@pytest.mark.parametrize(
    ("trials", "compared", "only_in", "exit_code"),
    [
        ((*synthetic.quick(), synthetic.trial("new", lora_rank=64)), {"baseline", "optimized"}, {"b": ("new",)}, 0),
        ((synthetic.trial("baseline", lora_rank=8),), set(), {"a": ("baseline", "optimized"), "b": ("baseline",)}, 2),
    ],
)
def test_configurations_of_one_run_only_are_named_and_not_compared(runs, trials, compared, only_in, exit_code):
    comparison = pair(runs({}, {}, later={"trials": trials}))
    assert {name: labels for name, labels in comparison.only_in.items() if labels} == only_in
    assert {row.configuration for row in comparison.rows} == compared
    assert comparison.exit_code == exit_code


def out_of_memory(*workers):
    """Return a change that makes trials of `optimized` on these workers fail; without any, on all."""

    def change(result):
        if result.trial.name != "optimized" or (workers and result.worker not in workers):
            return result
        return replace(result, status=TrialStatus.OUT_OF_MEMORY, reason="no room", metrics=None, steps=Steps())

    return change


@pytest.mark.parametrize(
    ("workers", "why"), [((), r".* in b"), (("worker-3", "worker-4"), r"2 of .* OUT_OF_MEMORY later, 0 before")]
)
def test_a_configuration_that_runs_out_of_memory_more_often_does_not_pass_at_the_speed_of_the_others(
    runs, workers, why
):
    changed = out_of_memory(*workers)
    comparison = pair(runs({}, {}, later={"changed": changed}))
    assert verdicts(comparison) == {"baseline": "same", "optimized": "unknown"}
    assert re.fullmatch(why, comparison.undecided[0].why)
    assert comparison.exit_code == ExitCode.UNDECIDED
    assert not workers or pair(runs({}, {}, changed=changed)).exit_code == 0


def test_a_run_without_a_single_success_is_named_not_its_conditions_and_one_run_twice_is_refused(runs):
    first, second = runs({}, {}, changed=lambda result: replace(result, status=TrialStatus.FAILED, reason="x"))
    first = replace(first, results=tuple(replace(each, status=TrialStatus.SUCCEEDED) for each in first.results))
    with pytest.raises(CompareError, match=r"run b\b.*inv report --run=b"):
        compare([first], [second])
    with pytest.raises(CompareError, match=r"run a\b"):
        compare([first], [second, first])


def test_measurements_of_other_kinds_are_compared_and_less_is_better_for_durations(runs):
    def slower_loading(result):
        changed = [
            replace(measurement, value=measurement.value * 1.2, interval=None)
            if measurement.name == "load_time_sec"
            else measurement
            for measurement in result.measurements
        ]
        return replace(result, measurements=changed)

    comparison = pair(runs({}, {}, trials=synthetic.other_kinds(), later={"changed": slower_loading}))
    loads = [row for row in comparison.rows if row.metric == "load_time_sec"]
    assert [row.context for row in loads] == [{"cache": "warm", "precision": "nf4"}]
    assert all(row.verdict == "slower" for row in loads)
    assert all(row.speed_ratio == pytest.approx(1 / 1.2) for row in loads)
    decoding = [row for row in comparison.rows if row.metric == "decode_tokens_per_sec"]
    assert decoding
    assert all(row.verdict == "same" for row in decoding)
    assert not [row for row in comparison.rows if "bytes" in row.metric or "percent" in row.metric]


def test_telemetry_and_the_steps_of_a_single_rank_are_not_compared(runs):
    def with_telemetry(result):
        rank = synthetic.measurement("step_time_sec", 0.2, rank=1)
        sampled = synthetic.measurement("pcie_gb_per_sec", 3.0, window="measure")
        return replace(result, measurements=[*synthetic.telemetry(), rank, sampled])

    comparison = pair(runs({}, {}, changed=with_telemetry))
    assert {row.metric for row in comparison.rows} == {"elapsed_useful_tokens_per_sec", "steady_useful_tokens_per_sec"}


def test_the_json_has_every_field_and_a_hostile_name_stays_text(runs):
    trials = (synthetic.trial(HOSTILE), synthetic.trial("baseline", lora_rank=64))
    comparison = pair(runs({}, {}, trials=trials, later={"workers": 1}), allow=["workers"])
    document = json.loads(to_json(comparison))
    header = (document["kind"], document["schema_version"], document["exit_code"])
    assert header == ("comparison", 2, ExitCode.UNDECIDED)
    assert document["differences"] == [{"name": "workers", "values": [["a", ["4"]], ["b", ["1"]]]}]
    assert document["refused"] == []
    assert document["rows"][0]["configuration"] == HOSTILE
    assert document["rows"][0]["after"]["n_processes"] == 1
    assert document["rows"][0]["context"] == {}


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
