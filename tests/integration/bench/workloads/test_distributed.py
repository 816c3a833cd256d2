"""Rejected distributed trials, measurements of ranks' times, and the rank named in a failure; no rank is started."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from bench.data.inputs import InputError
from bench.harness import termination
from bench.harness.termination import Stopped, WorkerGone
from bench.records.status import ReasonCode
from bench.workloads import distributed
from bench.workloads.ranks import watch
from bench.workloads.ranks.launcher import choose_backend, make_limits
from bench.workloads.ranks.watch import (
    RankFailed,
    RankKilled,
    RankOutOfMemory,
    Ranks,
)


@pytest.fixture
def ddp_trial(make_trial):
    return lambda **changes: make_trial(**({"kind": "distributed", "world_size": 2} | changes))


@pytest.fixture
def ranks(monkeypatch, ddp_trial, tmp_path):
    """Return ranks that only wait: the test writes their files."""
    real = subprocess.Popen
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr(watch.subprocess, "Popen", lambda _argv, **options: real(argv, **options))
    limits = watch.RankLimits(silence_sec=5.0, step_sec=10.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Ranks(ddp_trial(), "gloo", limits, module="ranks") as ranks:
        yield ranks


def write_heartbeat(ranks: Ranks, rank: int, **heartbeat: object) -> None:
    (ranks.folder / f"rank-{rank}.json").write_text(json.dumps({"pid": 0, "count": 1, "moves": 1} | heartbeat))


def test_too_few_gpus_are_rejected_and_none_means_gloo(ddp_trial):
    assert choose_backend(ddp_trial(world_size=4), 0) == "gloo"
    assert choose_backend(ddp_trial(world_size=4), 4) == "nccl"
    with pytest.raises(InputError, match=r"^world_size: 4 ranks .* 2; "):
        choose_backend(ddp_trial(world_size=4), 2)


def test_a_step_of_many_tokens_may_take_longer_than_the_silence_limit(ddp_trial):
    assert make_limits(ddp_trial(profile="gpu")) == watch.RankLimits(silence_sec=45.0, step_sec=50.0)
    assert make_limits(ddp_trial(profile="gpu", max_seq_len=4096, gradient_accumulation_steps=32)).step_sec > 600
    assert make_limits(ddp_trial(max_seq_len=128, micro_batch_size=4)).step_sec == 512


def test_fewer_samples_than_ranks_are_rejected(ddp_trial, data_file, make_record):
    from bench.data.readers import read_data

    facts, conversations = read_data(data_file)
    record = make_record(ddp_trial(world_size=21, data=str(data_file)))
    with pytest.raises(InputError, match=rf"^{data_file}: .* 21 ranks, found 20$"):
        distributed.measure(record, (None, facts, conversations), None)


def test_a_step_has_the_time_of_its_slowest_rank_and_the_size_of_one_device(ddp_trial, make_record):
    record = make_record(ddp_trial())
    tables: list[distributed.Table] = []
    phases: list[str] = []
    record.on_phase = phases.append
    table = [[0.5, 2.0, 8, 512, 400], [0.7, 4.0, 8, 512, 300]]
    lines = [
        {"phase": "measure"},
        {"step": {"phase": "measure", "table": table}},
        {"phase": "measure", "phase_sec": 2.5},
    ]
    for line in lines:
        distributed.apply_line(record, tables, line)
    steps = record.steps
    assert (steps.step_time_sec, steps.loss, steps.samples) == ([0.7], [3.0], [8])
    assert (steps.tokens, steps.useful_tokens) == ([512], [350])
    distributed.add_measurements(record, tables, "gloo")
    assert [m.value for m in record.measurements[:2]] == [16 / 0.7, 1024 / 0.7]
    assert (record.phases, phases) == ({"measure": 2.5}, ["measure", ""])


@pytest.mark.parametrize(
    ("phase", "waiting", "seconds", "alive", "local_ranks", "raised", "message"),
    [
        ("measure", [0], 6, [0], [0, 1], RankKilled, "^rank 1 .* 5 s in measure step 7$"),
        ("measure", [0], 11, [0, 1], [0, 1], RankKilled, "^rank 1 .* 10 s in measure step 7$"),
        ("measure", [], 11, [0, 1], [0, 1], RankKilled, "^rank 0 and rank 1 .*measure step 7"),
        (
            "measure",
            [],
            11,
            [0, 1],
            [0],
            WorkerGone,
            "^rank 0 and rank 1 .*measure step 7",
        ),  # or the network
        ("load", [], 1000, [0, 1], [0, 1], None, ""),  # which may take any time with heartbeats
    ],
)
def test_a_rank_that_hangs_is_named(monkeypatch, ranks, phase, waiting, seconds, alive, local_ranks, raised, message):
    position = {"phase": phase, "step": 7 if phase == "measure" else 0}
    for rank in (0, 1):
        write_heartbeat(ranks, rank, **position, waiting=rank in waiting)
    ranks.check_progress()
    later = time.monotonic() + seconds
    for rank in alive:
        write_heartbeat(ranks, rank, **position, waiting=rank in waiting, count=2)
    with monkeypatch.context() as patch:
        patch.setattr(watch.time, "monotonic", lambda: later)
        patch.setattr(ranks, "_processes", {rank: ranks._processes[rank] for rank in local_ranks})
        with contextlib.nullcontext() if raised is None else pytest.raises(raised, match=message):
            ranks.check_progress()


def write_error(ranks: Ranks, rank: int, code: str, reason: str, at: float, **peaks: object) -> None:
    report = {"rank": rank, "reason_code": code, "reason": reason, "at": at} | peaks
    (ranks.folder / f"error-{rank}.json").write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("failures", "raised", "message"),
    [
        ({"ranks": [(0, 1), (1, -signal.SIGKILL)]}, RankKilled, "rank 1 .* SIGKILL in measure step 3"),
        ({"stopped": [1]}, Stopped, "rank 1 "),
        ({"gone": [1]}, WorkerGone, "rank 1 .* machine in measure"),
        ({"errors": [{"rank": 1, "reason_code": "error", "reason": "ValueError: no", "at": 2.0}]}, RankFailed, "no"),
        ({"ranks": [(0, 1)]}, WorkerGone, ""),  # only connections broke
        ({"ranks": [(0, 1), (1, 70)]}, RankFailed, ""),
    ],
)
def test_a_failure_is_named_before_the_connections_that_broke_because_of_it(ranks, failures, raised, message):
    write_error(ranks, 0, "connection_lost", "RuntimeError: connection closed by peer", 1.0)
    write_heartbeat(ranks, 1, phase="measure", step=3)
    ranks.check_progress()
    error = ranks.failure([failures])
    assert type(error) is raised
    assert re.search(message, str(error))
    outcome = error.outcome if isinstance(error, Stopped) else termination.classify_error(error)
    assert outcome.is_transient == (raised in (WorkerGone, Stopped))


def test_a_faulty_gpu_is_the_cause_of_whatever_else_happened(ranks):
    write_error(ranks, 0, "error", "RuntimeError: CUDA error", 1.0)
    write_error(ranks, 1, "gpu_fault", "GPU 0: XID 79", 2.0)
    error = ranks.failure([{"stopped": [0], "ranks": [(0, -signal.SIGABRT)]}])
    assert termination.classify_error(error).reason_code is ReasonCode.GPU_FAULT


@pytest.mark.parametrize(
    ("code", "raised"), [("error", RankFailed), ("out_of_memory", RankOutOfMemory), ("bad_input", InputError)]
)
def test_the_rank_that_failed_first_is_named_with_its_own_reason(ranks, code, raised):
    for rank, at in ((0, 2.0), (1, 1.0)):
        write_error(ranks, rank, code, f"the reason of rank {rank}", at)
    error = ranks.failure()
    assert type(error) is raised
    assert "the reason of rank 1" in str(error)


def test_a_rank_out_of_memory_is_named_with_its_peak_and_a_suggestion(ranks, ddp_trial, make_record):
    write_error(ranks, 1, "out_of_memory", "Tried to allocate 2.50 GiB.", 1.0, vram_bytes=21 << 30, rss_bytes=3 << 30)
    error, record = ranks.failure(), make_record(ddp_trial())
    record.peak_vram_bytes, record.peak_rss_bytes = error.peak_vram_bytes, error.peak_rss_bytes
    outcome = termination.classify_error(error, record)
    assert (outcome.reason_code, outcome.remedy) == (ReasonCode.OUT_OF_MEMORY, termination.MORE_MEMORY)
    reason = "out of memory: rank 1: Tried to allocate 2.50 GiB. (in start); peak VRAM 21.00 GiB"
    assert outcome.reason == reason


def test_a_partial_line_is_not_read_until_it_is_complete(ranks):
    path, lines = ranks.folder / watch.LINES_FILE, list[dict[str, str]]()
    path.write_text('{"phase": "load"}\n{"pha')
    ranks.dispatch_lines(lines.append)
    assert lines == [{"phase": "load"}]
    with path.open("a") as file:
        file.write('se": "warmup"}\n')
    ranks.dispatch_lines(lines.append)
    assert lines == [{"phase": "load"}, {"phase": "warmup"}]
