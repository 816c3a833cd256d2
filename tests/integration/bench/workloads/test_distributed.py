"""What a distributed trial refuses, what it makes of ranks' times, and whom it blames: no rank is started."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from bench.data.inputs import InputError
from bench.harness import termination
from bench.records.bootstrap import summarize
from bench.records.result import TrialStatus
from bench.workloads.distributed import distributed, efficiency, torchrun
from bench.workloads.distributed.distributed import RankReport, choose_backend, make_limits, rendezvous, visible_gpus
from bench.workloads.distributed.rank import Heartbeat
from bench.workloads.distributed.torchrun import RankFailed, RankOutOfMemory, RankStopped, Torchrun
from tests.support.faults import full_disk, until


@pytest.fixture
def ddp_trial(make_trial):
    return lambda **changes: make_trial(**({"kind": "distributed", "world_size": 2} | changes))


@pytest.fixture
def ranks(monkeypatch, ddp_trial):
    """Torchrun with a process in its place that only waits: what its ranks say is written by the test."""
    real = subprocess.Popen
    waits = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr(torchrun.subprocess, "Popen", lambda _argv, **options: real(waits, **options))
    limits = torchrun.RankLimits(silence_sec=5.0, step_sec=10.0)
    with Torchrun(ddp_trial(), "gloo", "127.0.0.1:0", limits) as started:
        yield started


def say(ranks: Torchrun, rank: int, **sign: object) -> None:
    (ranks.folder / f"rank-{rank}.json").write_text(json.dumps({"pid": 0, "count": 1, "moves": 1} | sign))


def test_too_few_gpus_are_refused_none_at_all_means_gloo_and_hidden_ones_are_not_counted(ddp_trial, monkeypatch):
    assert choose_backend(ddp_trial(world_size=4), 0) == "gloo"
    assert choose_backend(ddp_trial(world_size=4), 4) == "nccl"
    with pytest.raises(InputError, match=r"^world_size: 4 ranks need a GPU each, this machine shows 2; choose"):
        choose_backend(ddp_trial(world_size=4), 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == 0


def test_the_port_is_the_one_asked_for_or_any_that_is_free(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv(distributed.PORT_VARIABLE, str(port))
    assert rendezvous() == f"127.0.0.1:{port}"
    monkeypatch.delenv(distributed.PORT_VARIABLE)
    assert rendezvous() == "127.0.0.1:0"


@pytest.mark.parametrize("port", ["0", "65536", "none", "²"])
def test_a_port_that_is_none_is_refused(monkeypatch, port):
    monkeypatch.setenv(distributed.PORT_VARIABLE, port)
    with pytest.raises(InputError, match="expected a port from 1 to 65535"):
        rendezvous()


def test_a_step_of_many_tokens_may_take_longer_than_silence_lasts(monkeypatch, ddp_trial):
    assert make_limits(ddp_trial()) == torchrun.RankLimits(silence_sec=45.0, step_sec=50.0)
    assert make_limits(ddp_trial(max_seq_len=4096, gradient_accumulation_steps=32)).step_sec > 600
    monkeypatch.setenv(distributed.SILENCE_VARIABLE, "soon")
    with pytest.raises(InputError, match="expected 1 to 3600 seconds, found 'soon'"):
        make_limits(ddp_trial())


def test_fewer_samples_than_ranks_are_refused(ddp_trial, data_file, make_record):
    from bench.data.conversations import read_data

    facts, conversations = read_data(data_file)
    record = make_record(ddp_trial(world_size=21, data=str(data_file)))
    with pytest.raises(InputError, match="expected a sample for each of 21 ranks, found 20"):
        distributed.measure(record, (None, facts, conversations), None)


def test_efficiency_is_the_ratio_of_medians_and_its_interval_holds_it():
    without, with_ = [[0.9, 0.91], [0.9, 0.92]], [[1.0, 1.01], [1.0, 1.02]]
    found = efficiency.efficiency_percent(without, with_)
    assert found.median == pytest.approx(100 * 0.905 / 1.005)
    assert found.low <= found.median <= found.high
    assert found.n == 4
    share = efficiency.remainder_percent(found)
    assert share.median == pytest.approx(100 - found.median)
    assert share.low <= share.median <= share.high


def test_buckets_under_way_together_count_once_and_a_ring_carries_most_of_the_data_twice():
    assert efficiency.covered([]) == 0
    assert efficiency.covered([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0), (0.6, 0.7)]) == pytest.approx(3.0)
    assert [efficiency.bus_factor(n) for n in (1, 2, 4)] == [0.0, 1.0, 1.5]


def test_a_rate_is_slow_where_its_time_is_long():
    times = summarize([1.0, 2.0, 4.0])
    found = efficiency.rate(8.0, times)
    assert (found.median, found.low, found.high) == (4.0, 8.0 / times.high, 8.0 / times.low)
    assert found.p10 < found.median < found.p90


def test_a_step_is_as_long_as_its_slowest_rank_and_as_large_as_one_device(ddp_trial, make_record):
    record = make_record(ddp_trial())
    reported = RankReport(record)
    marked: list[str] = []
    record.on_phase = marked.append
    table = [[0.5, 2.0, 8, 512, 400, float("nan")], [0.7, 4.0, 8, 512, 300, float("nan")]]
    lines = [
        {"phase": "measure"},
        *({"step": {"kind": kind, "block": 0, "table": table}} for kind in ("on", "off")),
        {"phase": "measure", "phase_sec": 2.5},
    ]
    for line in lines:
        reported.take(line)
    steps = record.steps
    assert (steps.step_time_sec, steps.loss, steps.samples) == ([0.7], [3.0], [8])
    assert (steps.tokens, steps.useful_tokens) == ([512], [350])
    assert reported.slowest("off") == [[0.7]]
    assert (record.phases, marked) == ({"measure": 2.5}, ["measure", ""])


@pytest.mark.parametrize(
    ("place", "after", "signs", "failure"),
    [
        pytest.param(
            {"phase": "measure", "step": 7}, 6, [0], r"^rank 1 has been silent for 5 s in measure step 7$",
            id="a silent rank is named and the waiting one is not",
        ),
        pytest.param(
            {"phase": "measure", "step": 7}, 11, [0, 1], r"^rank 1 has not ended measure step 7 within 10 s",
            id="a step that never ends names the rank the others wait for",
        ),
        pytest.param(
            {"phase": "load", "step": 0}, 1000, [0, 1], None, id="loading may take as long as it gives signs"
        ),
    ],
)  # fmt: skip
def test_a_rank_that_hangs_is_named(monkeypatch, ranks, place, after, signs, failure):
    waiting = [{"waiting": place["phase"] == "measure"}, {}]
    for rank in (0, 1):
        say(ranks, rank, **place, **waiting[rank])
    ranks.look()
    later = time.monotonic() + after
    monkeypatch.setattr(torchrun.time, "monotonic", lambda: later)
    for rank in signs:
        say(ranks, rank, **place, **waiting[rank], count=2)
    with contextlib.nullcontext() if failure is None else pytest.raises(RankFailed, match=failure):
        ranks.look()


@pytest.fixture
def _lost(ranks) -> None:
    """Rank 0 says that its connection was closed."""
    lost = {"rank": 0, "kind": "FAILED", "reason": "RuntimeError: connection closed by peer", "at": 1.0}
    (ranks.folder / "error-0.json").write_text(json.dumps(lost))


@pytest.mark.usefixtures("_lost")
def test_the_killed_rank_is_blamed_before_those_that_lost_its_connection(ranks):
    say(ranks, 1, phase="measure", step=3)
    ranks.look()
    failures = {"ranks": [(0, 1), (1, -signal.SIGKILL)]}
    (ranks.folder / torchrun.FAILURES_FILE).write_text(json.dumps(failures))
    assert str(ranks.failure()) == "rank 1 was killed by SIGKILL in measure step 3"


@pytest.mark.usefixtures("_lost")
def test_a_machine_that_was_told_to_stop_is_blamed_and_not_the_rank_that_failed_because_of_it(ranks):
    (ranks.folder / "failures-1.json").write_text(json.dumps({"stopped": [1]}))
    error = ranks.failure()
    assert type(error) is RankStopped
    assert str(error) == "one of its workers was told to stop, and rank 1 had no time to end its step"


@pytest.mark.parametrize(
    ("kind", "raised"), [("FAILED", RankFailed), ("OUT_OF_MEMORY", RankOutOfMemory), ("input", InputError)]
)
def test_the_rank_that_failed_first_is_blamed_in_its_own_words(ranks, kind, raised):
    for rank, at in ((0, 2.0), (1, 1.0)):
        said = {"rank": rank, "kind": kind, "reason": f"what rank {rank} says", "at": at}
        (ranks.folder / f"error-{rank}.json").write_text(json.dumps(said))
    error = ranks.failure()
    assert type(error) is raised
    assert "what rank 1 says" in str(error)


def test_a_rank_out_of_memory_is_named_with_its_own_peak_and_what_to_try(ranks, ddp_trial, make_record):
    words = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.68 GiB "
    words += "of which 1.20 GiB is free."
    for vram, rss, peak in ((21 << 30, 3 << 30, "peak VRAM 21.00 GiB"), (None, 3 << 30, "peak RSS 3.00 GiB")):
        said = {"rank": 1, "kind": "OUT_OF_MEMORY", "reason": words, "at": 1.0, "vram_bytes": vram, "rss_bytes": rss}
        (ranks.folder / "error-1.json").write_text(json.dumps(said))
        error = ranks.failure()
        record = make_record(ddp_trial(micro_batch_size=8))
        record.peak_vram_bytes, record.peak_rss_bytes = error.peak_vram_bytes, error.peak_rss_bytes
        end, reason = termination.end_of(error, record)
        assert end is TrialStatus.OUT_OF_MEMORY
        assert reason == (
            f"out of memory: rank 1: 2.50 GiB more were asked for with 1.20 GiB of 23.68 GiB free; {peak}; "
            "next to try: micro_batch_size=4 gradient_accumulation_steps=2"
        )


def test_signs_go_on_when_the_disk_was_full_for_a_moment(tmp_path, monkeypatch):
    signs = Heartbeat(tmp_path, 0, every_sec=0.01)
    refused = threading.Event()

    def refuse() -> None:
        refused.set()
        full_disk()

    monkeypatch.setattr(signs, "_write", refuse)
    assert refused.wait(30)
    monkeypatch.undo()
    before = json.loads((tmp_path / "rank-0.json").read_text())["count"]
    until(lambda: json.loads((tmp_path / "rank-0.json").read_text())["count"] > before + 2, "two more signs")


def test_half_a_line_is_left_until_it_is_whole(ranks):
    path = ranks.folder / torchrun.LINES_FILE
    path.write_text('{"phase": "load"}\n{"pha')
    assert list(ranks.lines()) == [{"phase": "load"}]
    with path.open("a") as file:
        file.write('se": "warmup"}\n')
    assert list(ranks.lines()) == [{"phase": "warmup"}]
