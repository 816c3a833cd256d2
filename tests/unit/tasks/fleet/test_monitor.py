"""`inv monitor`: its rows, and workers that do not answer."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostUnreachable
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent
from tasks.clients import workers
from tasks.clients.workers import BenchProgram, bench_program
from tasks.errors import RetryableError
from tasks.fleet import monitor
from tasks.fleet.monitor import WorkerSample
from tasks.settings.layers import load

GPU = {
    "gpu": 0,
    "name": "NVIDIA A10",
    "utilization_percent": 97,
    "memory_used_bytes": 20 << 30,
    "memory_total_bytes": 24 << 30,
    "power_watts": 148.6,
    "sm_clock_mhz": 1695,
    "temperature_celsius": 61,
}
BUSY = WorkerSample(worker="worker-10", gpus=[GPU], trial="optimized.worker-0", phase="measure 12/35")
UNKNOWN_GPU = {**dict.fromkeys(GPU), "gpu": 1}
REASON = "kubectl exec: Unable to connect to the server: dial tcp 10.0.0.1:6443: connect: no route to host"


@pytest.mark.parametrize(
    ("sample", "cells"),
    [
        (
            BUSY,
            ["worker-10", "0 A10", "97 %", "20.0/24.0 GiB", "149 W", "1695 MHz", "61 C", BUSY.trial, "measure 12/35"],
        ),
        (WorkerSample(worker="w", gpus=[UNKNOWN_GPU]), ["w", "1 -", "-", "-", "-", "-", "-", "idle", "-"]),
        (
            WorkerSample(worker="w\x1b", load_average_1min=0.52),
            ["w\\x1b", "no GPU, load 0.5", "-", "-", "-", "-", "-", "idle", "-"],
        ),
    ],
)
def test_a_row_says_what_a_gpu_is_doing_and_for_which_trial(sample: WorkerSample, cells: list[str]) -> None:
    assert list(map(list, monitor.rows([sample]))) == [cells]


def test_a_sample_with_unreachable_workers_is_not_a_success() -> None:
    assert monitor.find_unreachable([BUSY]) is None
    failure = monitor.find_unreachable([BUSY, WorkerSample(worker="worker-1", error="log in")])
    assert isinstance(failure, RetryableError)
    assert re.match(r"1 of 2 .*: worker-1: log in; .*`inv monitor`", str(failure))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_and_words_are_never_cut_at_any_terminal_width(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(monitor.render([BUSY, WorkerSample(worker="worker-11", error=f"{REASON}\n\x1b[31m")]))
    parts = console.file.getvalue().split()  # type: ignore[attr-defined]
    for word in ("worker-10", "optimized.worker-0", "measure", "12/35", "worker-11:", *REASON.split()[:-1]):
        assert any(word in each for each in parts), word
    assert "\x1b" not in "".join(parts)


class AnsweringHost(LocalHost):
    """A worker whose `python -m bench sample` has this answer; None: it cannot be reached."""

    answer: Any = None

    def run(self, *_: object, **__: object) -> Completed:
        if self.answer is None:
            raise HostUnreachable(f"{self.name}: no route to host")
        return Completed(exit_code=0, stdout=self.answer)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, "no route to host"),
        (b'{"gpus": [{"gpu": 0}], "load_average_1min": "low"}', "unreadable"),
    ],
)
def test_a_worker_without_a_readable_answer_has_an_error(tmp_path, context, monkeypatch, answer, error) -> None:
    monkeypatch.setattr(Agent, "holder", lambda *_: None)
    monkeypatch.setattr(AnsweringHost, "answer", answer)
    sample = monitor.sample_worker(load(context()), None, AnsweringHost(name="w", workdir=str(tmp_path)))
    assert error in str(sample.error)
    assert not sample.gpus


def test_a_sample_has_the_running_trial_and_its_phase(tmp_path, context, monkeypatch) -> None:
    answers = {
        "holder": [{"holder": f"{tmp_path}/runs/r/optimized.w.2"}],
        "watch": [{"state": "running", "progress": {"phase": "measure", "step": 3, "steps": 9}}],
    }

    def lines(_agent, verb, _arguments, *, on_line=None, **_limits):
        for line in answers[verb]:
            if on_line is not None:
                on_line(line)
        return answers[verb]

    monkeypatch.setattr(Agent, "call_lines", lines)
    monkeypatch.setattr(BenchProgram, "sample", lambda *_: {"gpus": [GPU], "load_average_1min": 0.1})
    sample = monitor.sample_worker(load(context()), None, LocalHost(name="w", workdir=str(tmp_path)))
    assert (sample.trial, sample.phase, sample.gpus) == ("optimized.w", "measure 3/9", [GPU])


@pytest.mark.parametrize(
    "ask", [BenchProgram.sample, lambda _, host: workers._run_for_json(host, Command(argv=("bench",)))]
)
@pytest.mark.parametrize("stdout", [b"", b'{"gpus": ['])
def test_an_answer_cut_short_is_unreachable_and_not_an_idle_gpu(context, monkeypatch, tmp_path, stdout, ask) -> None:
    monkeypatch.setattr(LocalHost, "run", lambda *_, **__: Completed(exit_code=0, stdout=stdout))
    with pytest.raises(HostUnreachable, match="truncated"):
        ask(bench_program(load(context())), LocalHost(name="w", workdir=str(tmp_path)))
