"""The line of a wait: nothing for a short one, then the elapsed time; without a terminal a line after a silence."""

import io
import sys
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.records.run import Progress
from tasks.cli import waiting
from tasks.cli.waiting import QUIET_SEC, Wait
from tasks.fleet.training_job import AttemptFiles, TrainingState
from tasks.fleet.training_progress import TrainingView


@dataclass
class Scene:
    now: float = 0.0
    out: io.StringIO = field(default_factory=io.StringIO)

    def wait(self, *, is_terminal: bool) -> Wait:
        console = Console(file=self.out, width=80, force_terminal=is_terminal, color_system=None)
        return Wait("fetching", console, clock=lambda: self.now)


def test_a_terminal_has_text_time_and_share_after_a_moment_and_nothing_at_the_end() -> None:
    scene = Scene()
    with scene.wait(is_terminal=True) as line:
        assert line.render().plain == ""
        scene.now = QUIET_SEC
        assert line.render().plain == "[0:03] fetching"
        scene.now = 75.0
        line.set_text("fetching, 75 %")
        assert line.render().plain == "[1:15] fetching, 75 %"
    assert not scene.out.getvalue().endswith("fetching, 75 %\n")
    with (short := Scene()).wait(is_terminal=False):
        pass
    assert short.out.getvalue() == ""


def test_a_pipe_has_a_line_after_each_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, has_printed, pulse = Scene(), threading.Event(), Wait.pulse

    def print_line(self: Wait) -> None:
        pulse(self)
        has_printed.set()

    monkeypatch.setattr(waiting, "PULSE_SEC", 0.0)
    monkeypatch.setattr(Wait, "pulse", print_line)
    with scene.wait(is_terminal=False):
        scene.now = 30.0
        assert has_printed.wait(30)
    assert scene.out.getvalue().startswith("[0:30] fetching\n")


def test_a_wait_within_another_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, out = Scene(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr(out, "isatty", lambda: True)
    console = Console(file=out, force_terminal=True)
    with Wait("outer", console), scene.wait(is_terminal=True):
        assert sys.stdout is not out
    assert scene.out.getvalue() == ""


def test_a_training_has_the_time_in_its_phase_and_on_a_pipe_a_line_for_each_phase() -> None:
    scene, line = Scene(), SimpleNamespace(text=lambda state: state.progress.phase)

    def show(view: TrainingView, phase: str) -> None:
        progress = Progress(phase=phase, step=0, steps=9, elapsed_sec=0.0)
        view.update(TrainingState(attempts=[AttemptFiles(number=1, first=0.0, last=0.0)], progress=progress))

    view = TrainingView(line, console=Console(file=scene.out, width=80), clock=lambda: scene.now)  # type: ignore[arg-type]
    for scene.now, phase in ((5.0, "evaluate"), (30.0, "evaluate"), (70.0, "train")):
        show(view, phase)
        assert view.render().plain.endswith(f", {'0:25' if scene.now == 30.0 else '0:00'} in this phase")
    assert scene.out.getvalue().splitlines() == ["[0:05] evaluate", "[1:10] train"]
