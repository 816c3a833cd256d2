"""Signals and exceptions are mapped to the right status.

Not covered: the status of each signal; tests/faults/bench/test_bench_ends.py sends them to real trials.
"""

import errno
import signal
import time

import pytest

from bench.harness.termination import Stopped, StopSignals, classify_error
from bench.records.status import Outcome, ReasonCode
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


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:132] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("unable to mmap 8 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_every_allocators_error_is_out_of_memory(error):
    assert classify_error(error).reason_code is ReasonCode.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes cannot be multiplied"), OSError(errno.ENOSPC, "No space"), ValueError("no memory?")]
)
def test_other_errors_are_failures_that_name_their_class(error):
    outcome = classify_error(error)
    assert outcome.reason_code is ReasonCode.ERROR
    assert str(outcome.reason).startswith(f"{type(error).__name__}: ")


def test_a_reason_is_one_short_line_and_never_empty():
    reason = classify_error(RuntimeError("first\n  second\n" + "x" * 10_000)).reason
    assert reason is not None
    assert reason.startswith("RuntimeError: first second xxx")
    assert len(reason) == 300
    assert classify_error(ValueError()) == Outcome.of(ReasonCode.ERROR, "ValueError: no message")


@pytest.mark.parametrize(
    "message",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4242",
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation",
        "NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error, NCCL version 2.27.5",
        "NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled system error, NCCL version 2.27.5",
        "The client socket has timed out after 180000ms while trying to connect to (10.0.0.7, 21000).",
        "Broken pipe",
    ],
)
def test_a_broken_connection_between_ranks_is_lost_and_not_failed(message):
    assert classify_error(RuntimeError(message)).reason_code is ReasonCode.CONNECTION_LOST


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error, NCCL version 2.27.5"),
        RuntimeError("the size of tensor a (4) must match the size of tensor b (5)"),
        ValueError("Connection closed by peer"),
    ],
)
def test_other_errors_of_a_rank_are_failures(error):
    assert classify_error(error).reason_code is ReasonCode.ERROR
