"""Signals and exceptions are mapped to the right status.

Not covered: the status of each signal; tests/faults/bench/test_bench_ends.py sends them to real trials.
"""

import builtins
import signal
import time

import pytest

from bench.harness.termination import GpuFault, Stopped, StopSignals, classify_error
from bench.records.paths import NODE_NAME_VARIABLE
from bench.records.status import Outcome, ReasonCode
from tests.support.cases import Case, load_cases
from tests.support.faults import OutOfMemoryError

pytestmark = pytest.mark.usefixtures("restored_signals")


@pytest.fixture
def stops() -> StopSignals:
    stops = StopSignals()
    stops.install()
    return stops


def receive(number: int) -> None:
    signal.raise_signal(number)
    time.sleep(0)  # Python runs the handler between two instructions of its own


def test_only_the_first_signal_counts_and_is_raised_again_at_the_next_check(stops):
    stops.check()
    with pytest.raises(Stopped, match="SIGTERM"):
        receive(signal.SIGTERM)
    receive(signal.SIGINT)  # does not raise
    with pytest.raises(Stopped, match="SIGTERM"):  # a library may have swallowed the first one
        stops.check()


def test_a_process_that_is_writing_its_result_is_not_stopped(stops):
    stops.close()
    receive(signal.SIGTERM)
    stops.check()
    with pytest.raises(Stopped, match="SIGTERM"):  # it does not write it after all
        stops.reopen()


@pytest.mark.parametrize("case", load_cases(__file__, "errors.yaml"))
def test_an_error_is_recorded_with_its_cause(case: Case):
    error = {**vars(builtins), "OutOfMemoryError": OutOfMemoryError}[case["class"]](*case["arguments"])
    outcome = classify_error(error)
    assert outcome.reason_code is ReasonCode(case["expected"])
    assert case["expected"] == "out_of_memory" or str(outcome.reason).startswith(f"{type(error).__name__}: ")


@pytest.mark.parametrize(
    ("node", "command"), [("gpu-1.example", "`kubectl cordon gpu-1.example`"), ("", None), ("-x; reboot", None)]
)
@pytest.mark.parametrize("error", [GpuFault("XID 79"), RuntimeError("CUDA error: uncorrectable ECC error")])
def test_a_fault_of_a_gpu_names_its_node_and_the_command_in_a_pod(monkeypatch, error, node, command):
    monkeypatch.setenv(NODE_NAME_VARIABLE, node)
    outcome = classify_error(error)
    assert outcome.reason_code is ReasonCode.GPU_FAULT
    assert str(error) in str(outcome.reason)
    assert ("cordon" in str(outcome.reason)) == (command is not None)
    assert command is None or command in str(outcome.reason)


def test_a_reason_is_one_short_line_and_never_empty():
    reason = classify_error(RuntimeError("first\n  second\n" + "x" * 10_000)).reason
    assert reason is not None
    assert reason.startswith("RuntimeError: first second xxx")
    assert len(reason) == 300
    assert classify_error(ValueError()) == Outcome.of(ReasonCode.ERROR, "ValueError: no message")
