"""`inv monitor`: its rows, workers that do not answer, and one that hangs while the others answer."""

import io
import re
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostUnreachable
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent
from tasks.clients import workers
from tasks.errors import RetryableError
from tasks.fleet import monitor
from tasks.fleet.monitor import WorkerPoller, WorkerSample
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
BUSY = WorkerSample(worker="worker-0", gpus=[GPU], trial="optimized.worker-0", phase="measure 12/35")


def rendered_lines(looks, width=120):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(monitor.render(looks, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_row_says_what_a_gpu_is_doing_and_for_which_trial():
    (row,) = monitor.rows([BUSY])
    assert dict(zip(monitor.COLUMNS, row, strict=True)) == {
        "worker": "worker-0",
        "GPU": "0 A10",
        "busy": "97 %",
        "memory": "20.0/24.0 GiB",
        "power": "149 W",
        "SM clock": "1695 MHz",
        "temp": "61 C",
        "trial": "optimized.worker-0",
        "phase": "measure 12/35",
    }
    unknown = {**dict.fromkeys(GPU), "gpu": 1}
    first, second = monitor.rows([WorkerSample(worker="w", gpus=[GPU, unknown])])
    assert first[1] == "0 A10"
    assert second == ("w", "1 -", "-", "-", "-", "-", "-", "idle", "-")


def test_a_sample_with_unreachable_workers_is_not_a_success():
    assert monitor.find_unreachable([BUSY]) is None
    failure = monitor.find_unreachable([BUSY, WorkerSample(worker="worker-1", error="log in")])
    assert isinstance(failure, RetryableError)
    assert re.match(r"1 of 2 .*: worker-1: log in; .*`inv monitor --once`", str(failure))


def test_unreachable_workers_and_those_without_a_gpu_are_shown_as_such():
    looks = [
        WorkerSample(worker="w-0", error="no route\nto \x1b[31mhost"),
        WorkerSample(worker="w-1", load_average_1min=0.52),
    ]
    rows = monitor.rows(looks)
    assert rows[0][1] == "unreachable: no route\\nto \\x1b[31mhost"
    assert rows[1][1] == "no GPU, load 0.5"
    assert {len(row) for row in rows} == {len(monitor.COLUMNS)}
    assert [line.split()[0] for line in rendered_lines(looks)] == ["worker", "w-1", "w-0:"]


REASON = "kubectl exec: Unable to connect to the server: dial tcp 10.0.0.1:6443: connect: no route to host"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_and_words_are_never_cut_at_any_terminal_width(width):
    looks = [replace(BUSY, worker="worker-10"), WorkerSample(worker="worker-11", error=REASON)]
    lines = rendered_lines(looks, width)
    assert max(map(len, lines)) <= width
    for word in ("worker-10", "optimized.worker-0", "measure", "12/35", "worker-11:", *REASON.split()):
        assert any(word in line.split() for line in lines), word
    assert ("SM" in lines[0].split()) == (width == 200), "a column that does not fit is dropped"


class UnreachableHost(LocalHost):
    """A host that cannot be reached."""

    def run(self, _command, **_options):
        raise HostUnreachable(f"{self.name}: no route to host")


def test_the_sample_of_an_unreachable_worker_has_its_error(tmp_path):
    agent = Agent(UnreachableHost(name="w-7", workdir=str(tmp_path)))
    assert monitor.sample_worker(agent, lambda _: {"gpus": [], "load_average_1min": 0.1}).error == "no route to host"


@pytest.mark.parametrize(
    "answer", [{}, [], {"gpus": 1, "load_average_1min": 0.1}, {"gpus": [{"gpu": 0}], "load_average_1min": "low"}]
)
def test_the_sample_of_another_version_is_an_error_of_its_worker(tmp_path, monkeypatch, answer):
    agent = Agent(LocalHost(name="w", workdir=str(tmp_path)))
    monkeypatch.setattr(agent, "holder", lambda _: None)
    sample = monitor.sample_worker(agent, lambda _: answer)
    assert sample.error
    assert not sample.gpus


def test_a_sample_has_the_running_trial_and_its_phase(tmp_path, monkeypatch):
    agent = Agent(LocalHost(name="w", workdir=str(tmp_path)))
    folder = f"{tmp_path}/runs/r/optimized.w.2"
    answers = {
        "holder": [{"holder": folder}],
        "watch": [{"state": "running", "progress": {"phase": "measure", "step": 3, "steps": 9}}],
    }
    requests = []

    def lines(verb, arguments, *, on_line=None, **_limits):
        requests.append(arguments)
        for line in answers[verb]:
            if on_line is not None:
                on_line(line)
        return answers[verb]

    monkeypatch.setattr(agent, "call_lines", lines)
    sample = monitor.sample_worker(agent, lambda _: {"gpus": [GPU], "load_average_1min": 0.1})
    assert (sample.trial, sample.phase, sample.gpus) == ("optimized.w", "measure 3/9", [GPU])
    assert requests[1]["progress"] == "out/progress.json"


def test_a_slow_worker_does_not_delay_the_others():
    answers = threading.Event()

    def sample_worker(worker):
        if worker == "slow":
            answers.wait(30)
        return WorkerSample(worker=worker)

    poller = WorkerPoller(["slow", "quick"], sample_worker)
    try:
        samples = poller.poll(timeout_sec=0.3)
        assert [(sample.worker, sample.error is None) for sample in samples] == [("slow", False), ("quick", True)]
        answers.set()
        assert [sample.error for sample in poller.poll(timeout_sec=None)] == [None, None]
    finally:
        answers.set()
        poller.close()


@pytest.mark.parametrize("ask", [workers.sample, lambda _, host: workers._run_for_json(host, Command(argv=("bench",)))])
@pytest.mark.parametrize("stdout", [b"", b'{"gpus": ['])
def test_an_answer_cut_short_is_unreachable_and_not_an_idle_gpu(context, monkeypatch, tmp_path, stdout, ask):
    monkeypatch.setattr(LocalHost, "run", lambda *_, **__: Completed(exit_code=0, stdout=stdout))
    with pytest.raises(HostUnreachable, match="truncated"):
        ask(load(context()), LocalHost(name="w", workdir=str(tmp_path)))


@pytest.mark.parametrize(("once", "polls"), [(True, 1), (False, 3)])
def test_a_training_that_has_ended_is_no_unreachable_worker(once: bool, polls: int) -> None:
    lost = WorkerSample(worker="worker-0", error="pod train-0-a is Succeeded")
    answers = [BUSY] * (polls - 1) + [lost]
    poller = WorkerPoller(["worker-0"], lambda _: answers.pop(0))
    console, end = Console(file=io.StringIO(), width=120), "run r: FAILED: loss; `inv collect --run=r` fetches it"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(monitor, "REFRESH_SEC", 0.01)
        assert monitor._follow(console, poller, lambda: end, once=once, plain=True) == end
    assert answers == []
    assert poller.samples == [lost]
    poller.close()
