"""The tiny burn-in, run in a process."""

import pytest

from bench.records import suite
from bench.records.status import TrialStatus
from bench.workloads import health


@pytest.mark.slow
def test_the_tiny_burn_in_finds_no_fault_of_a_sound_machine(tiny_model, tiny_data, run_trial):
    (trial,) = suite("health", "tiny", str(tiny_model), str(tiny_data))
    result, _ = run_trial(trial)
    assert result.status is TrialStatus.SUCCEEDED
    values = {m.name: m.value for m in result.measurements}
    assert (values["memory_pattern_errors"], values["matmul_wrong_results"]) == (0, 0)
    assert values["all_reduce_bus_gb_per_sec"] > 0


def test_an_exchange_that_fails_is_a_fault_with_its_reason(make_record, monkeypatch):
    monkeypatch.setattr(health, "__name__", "bench.no_such_module")
    with pytest.raises(health.GpuFault, match=r"No module named bench\.no_such_module"):
        health._check_exchange(make_record(), health.SCALES["tiny"], health.StopSignals(), gpus=0)


WRONG = """import json, sys
print("x" * 200_000, file=sys.stderr)
print(json.dumps({"seconds": 1.0, "wrong": int(sys.argv[3])}))
"""


def test_a_wrong_sum_of_any_rank_is_a_fault_and_its_log_stops_no_rank(make_record, monkeypatch, tmp_path):
    (tmp_path / "wrong_sums.py").write_text(WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(health, "__name__", "wrong_sums")
    monkeypatch.setattr(health, "EXCHANGE_TIMEOUT_SEC", 20.0)
    with pytest.raises(health.GpuFault, match="1 wrong sums in rank 1"):
        health._check_exchange(make_record(), health.SCALES["tiny"], health.StopSignals(), gpus=0)
