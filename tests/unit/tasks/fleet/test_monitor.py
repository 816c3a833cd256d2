"""`inv monitor`: its rows, workers that do not answer, and one that hangs while the others speak."""

import io
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from remote.hosts.command import Command
from remote.hosts.host import Completed, HostUnreachable
from remote.hosts.local import LocalHost
from remote.jobs.agent import Agent
from tasks.clients import workers
from tasks.errors import RetryableError
from tasks.fleet import monitor
from tasks.fleet.monitor import Watch, WorkerSample
from tasks.settings.load import load

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


def shown(looks, width=120):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(monitor.shown(looks, width))
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


def test_a_worker_with_two_gpus_has_two_rows():
    rows = monitor.rows([WorkerSample(worker="w", gpus=[GPU, {**GPU, "gpu": 1}])])
    assert [(row[0], row[1], row[-2]) for row in rows] == [("w", "0 A10", "idle"), ("w", "1 A10", "idle")]


def test_what_is_not_known_is_a_dash():
    (row,) = monitor.rows([WorkerSample(worker="w", gpus=[{**dict.fromkeys(GPU), "gpu": 0}])])
    assert row == ("w", "0 -", "-", "-", "-", "-", "-", "idle", "-")


def test_one_look_at_workers_that_cannot_be_asked_is_no_success():
    monitor.check_all_answered([BUSY])
    with pytest.raises(
        RetryableError, match="1 of 2 workers could not be asked: worker-1: log in; once that is mended, "
    ):
        monitor.check_all_answered([BUSY, WorkerSample(worker="worker-1", trouble="log in")])


def test_unreachable_workers_and_those_without_a_gpu_are_shown_as_such():
    looks = [
        WorkerSample(worker="w-0", trouble="no route\nto \x1b[31mhost"),
        WorkerSample(worker="w-1", load_average_1min=0.52),
    ]
    rows = monitor.rows(looks)
    assert rows[0][1] == "unreachable: no route\\nto \\x1b[31mhost"
    assert rows[1][1] == "no GPU, load 0.5"
    assert {len(row) for row in rows} == {len(monitor.COLUMNS)}
    assert [line.split()[0] for line in shown(looks)] == ["worker", "w-1", "w-0:"]


REASON = "kubectl exec: Unable to connect to the server: dial tcp 10.0.0.1:6443: connect: no route to host"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_name_is_cut_and_no_word_broken_whatever_the_terminals_width(width):
    looks = [replace(BUSY, worker="worker-10"), WorkerSample(worker="worker-11", trouble=REASON)]
    lines = shown(looks, width)
    assert max(map(len, lines)) <= width
    for word in ("worker-10", "optimized.worker-0", "measure", "12/35", "worker-11:", *REASON.split()):
        assert any(word in line.split() for line in lines), word
    assert ("SM" in lines[0].split()) == (width == 200), "what there is no room for is left out whole"


class DeafHost(LocalHost):
    """A host that cannot be reached."""

    def run(self, _command, **_options):
        raise HostUnreachable(f"{self.name}: no route to host")


def test_a_look_at_an_unreachable_worker_is_its_trouble(tmp_path):
    agent = Agent(DeafHost(name="w-7", workdir=str(tmp_path)))
    assert monitor.look(agent, lambda _: {"gpus": [], "load_average_1min": 0.1}).trouble == "no route to host"


@pytest.mark.parametrize(
    "answer", [{}, [], {"gpus": 1, "load_average_1min": 0.1}, {"gpus": [{"gpu": 0}], "load_average_1min": "low"}]
)
def test_an_answer_of_another_version_is_the_trouble_of_its_worker(tmp_path, monkeypatch, answer):
    agent = Agent(LocalHost(name="w", workdir=str(tmp_path)))
    monkeypatch.setattr(agent, "holder", lambda _: None)
    seen = monitor.look(agent, lambda _: answer)
    assert seen.trouble == "its bench answers what this version does not read; is its image another's?"


def test_a_look_finds_the_running_trial_and_its_phase(tmp_path, monkeypatch):
    agent = Agent(LocalHost(name="w", workdir=str(tmp_path)))
    folder = f"{tmp_path}/runs/r/optimized.w.2"
    answers = {
        "holder": [{"holder": folder}],
        "watch": [{"state": "running", "progress": {"phase": "measure", "step": 3, "steps": 9}}],
    }
    asked = []

    def lines(verb, arguments, *, on_line=None, **_limits):
        asked.append(arguments)
        for line in answers[verb]:
            if on_line is not None:
                on_line(line)
        return answers[verb]

    monkeypatch.setattr(agent, "lines", lines)
    seen = monitor.look(agent, lambda _: {"gpus": [GPU], "load_average_1min": 0.1})
    assert (seen.trial, seen.phase, seen.gpus) == ("optimized.w", "measure 3/9", [GPU])
    assert asked[1]["progress"] == "out/progress.json"


def test_a_slow_worker_keeps_nobody_waiting():
    answers = threading.Event()

    def ask(worker):
        if worker == "slow":
            answers.wait(30)
        return WorkerSample(worker=worker)

    watch = Watch(["slow", "quick"], ask)
    try:
        first = watch.round(wait_sec=0.3)
        assert [(one.worker, one.trouble) for one in first] == [("slow", "asked, no answer yet"), ("quick", None)]
        answers.set()
        assert [one.trouble for one in watch.round(wait_sec=None)] == [None, None]
    finally:
        answers.set()
        watch.close()


@pytest.mark.parametrize("ask", [workers.sample, lambda _, host: workers._answer(host, Command(argv=("bench",)))])
@pytest.mark.parametrize("stdout", [b"", b'{"gpus": ['])
def test_an_answer_cut_short_is_unreachable_and_not_an_idle_gpu(context, monkeypatch, tmp_path, stdout, ask):
    monkeypatch.setattr(LocalHost, "run", lambda *_, **__: Completed(exit_code=0, stdout=stdout))
    with pytest.raises(HostUnreachable, match="cut short"):
        ask(load(context()), LocalHost(name="w", workdir=str(tmp_path)))
