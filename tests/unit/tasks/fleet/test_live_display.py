"""The live view: what is drawn and its plain lines, at 80 columns, with many threads and with odd names."""

import io
import itertools
import sys
from dataclasses import dataclass

import pytest
from rich.console import Console

from bench.records import suite
from bench.records.run import PlannedTrial, Progress
from bench.records.status import TrialStatus
from remote.fleet.events import EventType, FleetEvent
from tasks.fleet.live_display import FleetView
from tests.support.cases import Case, load_cases

WORKERS = ("worker-0", "worker-1")


@dataclass
class Scene:
    """A view of the quick suite on two workers, its console, and the time `now`, in seconds, which a test moves."""

    workers: tuple[str, ...] = WORKERS
    encoding: str = "utf-8"
    terminal: bool = False
    height: int = 25
    now: float = 100.0

    def __post_init__(self) -> None:
        self.bytes = io.BytesIO()
        self.console = Console(
            file=io.TextIOWrapper(self.bytes, encoding=self.encoding, write_through=True),
            width=80,
            height=self.height,
            force_terminal=self.terminal,
            legacy_windows=False,
            color_system=None,
            highlight=False,
        )
        planned = [
            PlannedTrial(trial_id=f"{trial.trial_id}.{worker}", trial=trial, worker=worker)
            for trial in suite("quick", "tiny", "m", "d")[:2]
            for worker in self.workers
        ]
        self.view = FleetView(
            run_id="20251120-quick",
            planned=planned,
            workers=self.workers,
            console=self.console,
            clock=lambda: self.now,
        )

    def send(self, kind: EventType, worker: str = "worker-0", trial: str | None = "baseline", **more: object) -> None:
        trial_id = f"{trial}.{worker}" if trial is not None else None
        self.view.handle(FleetEvent(kind=kind, worker=worker, trial_id=trial_id, **more))  # type: ignore[arg-type]

    def send_progress(
        self, step: int, phase: str = "measure", rate: float | None = 1.5, worker: str = "worker-0"
    ) -> None:
        progress = Progress(phase=phase, step=step, steps=18, elapsed_sec=0.0, samples_per_sec=rate)
        self.send(EventType.PROGRESS, worker, progress=progress)

    def drawn(self) -> list[str]:
        """The lines as they are drawn now."""
        with self.console.capture() as capture:
            self.console.print(self.view.render())
        return [line.rstrip() for line in capture.get().splitlines() if line.strip()]

    def printed_lines(self) -> list[str]:
        return self.bytes.getvalue().decode(self.encoding).splitlines()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_line_for_each_busy_worker_is_drawn_below_that_of_the_run(scene: Scene) -> None:
    scene.send(EventType.STARTED)
    scene.now += 12
    scene.send_progress(9)
    scene.send(EventType.ATTACHED, "worker-1", attempt=2)
    progress = Progress(phase="load", step=0, steps=18, elapsed_sec=40.0)
    scene.send(EventType.PROGRESS, "worker-1", progress=progress)
    assert scene.drawn() == [
        "20251120-quick · 0/4 trials ended · 0:12",
        "worker-0 baseline: measure 9/18, 1.50 samples/s, 0:12",
        "worker-1 baseline (attempt 2): load, 0:40",
    ]
    scene.send(EventType.WORKER_LOST, "worker-1", trial=None, reason="silent for 60 s")
    assert len(scene.drawn()) == 2


def test_failures_are_counted_in_the_header_and_cancelled_trials_apart(scene: Scene) -> None:
    scene.send(EventType.ENDED, status=TrialStatus.OUT_OF_MEMORY, reason="x")
    scene.send(EventType.ENDED, "worker-1", status=TrialStatus.CANCELLED)
    assert scene.drawn()[0].startswith("20251120-quick · 2/4 trials ended · 1 failed · 1 cancelled · ")


@pytest.mark.parametrize("case", load_cases(__file__, "live_lines.yaml"))
def test_plain_lines(case: Case, scene: Scene) -> None:
    with scene.view:
        for event in case["input"]:
            scene.now += event.pop("after", 0)
            if "phase" in event:
                step, rate = event.get("step", 0), event.get("rate")
                scene.send_progress(step, event["phase"], rate)
            else:
                status = {"status": TrialStatus(event.pop("status"))} if "status" in event else {}
                scene.send(EventType[event.pop("kind")], **event, **status)
    assert scene.printed_lines()[1:-1] == case["expected"]


def test_a_rejected_login_prints_one_line_and_one_more_after_login(scene: Scene) -> None:
    with scene.view:
        for worker in ("worker-0", "worker-1"):
            scene.send(EventType.STARTED, worker)
        for worker in ("worker-0", "worker-1"):
            scene.send(EventType.CREDENTIALS_REJECTED, worker, trial=None, reason="log in again")
        assert len(scene.drawn()) == 1
        for worker in ("worker-0", "worker-1"):
            scene.send(EventType.WORKER_BACK, worker, trial=None)
    logged_out, logged_in, _ = scene.printed_lines()[3:]
    assert logged_out.startswith("[0:00] worker-0: ")
    assert ": log in again; " in logged_out
    assert logged_in.startswith("[0:00] worker-1: "), "all are back"


def test_a_long_phase_gives_a_plain_sign_of_life_after_a_silence(scene: Scene) -> None:
    with scene.view:
        scene.view.pulse()
        scene.send(EventType.STARTED)
        for step in range(100):
            scene.now += 3
            scene.send_progress(step)
        scene.view.pulse()
    header, *lines = [line for line in scene.printed_lines() if "measure" in line or "trials ended" in line]
    assert "0/4 trials ended" in header
    assert lines[1:-1] == [
        "[0:03] worker-0 baseline: measure, 1.50 samples/s",
        "[5:00] worker-0 baseline: measure 99/18, 1.50 samples/s",
    ]


def test_names_with_brackets_are_not_markup() -> None:
    scene = Scene(workers=("[bold]gpu[bold]", "a [link=x]b"))
    scene.send(EventType.STARTED, "[bold]gpu[bold]")
    assert scene.drawn()[1].startswith("[bold]gpu[bold] baseline: starting")
    scene.send(EventType.ENDED, "[bold]gpu[bold]", status=TrialStatus.FAILED, reason="[/red] :smile: [x]")
    assert scene.printed_lines()[-1] == "[0:00] [bold]gpu[bold] baseline: failed, in 0:00, [/red] :smile: [x]"


def test_an_ascii_terminal_gets_ascii() -> None:
    scene = Scene(encoding="ascii")
    assert " | " in scene.drawn()[0]
    scene.send(EventType.ENDED, status=TrialStatus.FAILED, reason="Gerät voll")
    assert scene.printed_lines()[-1].endswith("Ger\\xe4t voll")


def test_every_line_of_a_large_fleet_fits_80_columns_and_the_screen() -> None:
    scene = Scene(workers=tuple(f"oke-node-pool-gpu-{n:04}" for n in range(40)), height=23)
    for worker in scene.workers[10:]:
        scene.send(EventType.STARTED, worker, trial="optimized")
        scene.now += 3600
        scene.send_progress(18, worker=worker, rate=1234.5)
    lines = scene.drawn()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 22
    assert lines[-1] == "+ 11 more"


def test_on_a_terminal_what_runs_is_drawn_and_ends_stay_above_it() -> None:
    scene = Scene(terminal=True)
    with scene.view:
        scene.send(EventType.STARTED)
        scene.send(EventType.ENDED, status=TrialStatus.SUCCEEDED)
    screen = scene.bytes.getvalue().decode()
    assert "worker-0 baseline: done, in 0:00" in screen
    assert "started" not in screen, "the drawn line shows it"
    assert screen.rstrip().splitlines()[-1].endswith("20251120-quick · 1/4 trials ended · 0:00")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    scene = Scene(terminal=True)
    with scene.view:
        scene.send(EventType.STARTED)
    assert b"\x1b" not in scene.bytes.getvalue()
    assert "[0:00] worker-0 baseline: started" in scene.printed_lines()


def test_a_reader_that_went_away_stops_the_lines_not_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            raise OSError

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    scene.console.file = Closed()
    scene.send(EventType.ENDED, status=TrialStatus.SUCCEEDED)
    scene.send(EventType.ENDED, "worker-1", status=TrialStatus.SUCCEEDED)
    assert scene.console.quiet


@pytest.mark.parametrize("kind", EventType)
def test_no_event_however_odd_raises(kind: EventType, scene: Scene) -> None:
    odd, amounts = "a\0\ud800[/b]\x1b\n", {"elapsed_sec": float("nan"), "samples_per_sec": float("inf")}
    progress = Progress(phase=odd, step=-1, steps=0, **amounts)
    for trial, text, status in itertools.product((None, odd), (None, odd), (None, *TrialStatus)):
        scene.send(kind, odd, trial, reason=text, status=status, progress=progress)
    assert all(len(line) <= 80 for line in scene.drawn())
    assert not scene.console.quiet
