"""The log and progress.json never disturb a measurement."""

import json
from pathlib import Path

import pytest

from bench.harness.record import TAIL_LINES, Log, ProgressFile
from bench.records import schema
from bench.records.run import Progress
from tests.support.faults import full_disk


def progress(phase: str, step: int) -> Progress:
    return Progress(phase=phase, step=step, steps=10, elapsed_sec=1.0)


def test_the_log_prints_every_line_and_keeps_the_last(capsys):
    log = Log(lambda: 1.5)
    for number in range(TAIL_LINES + 5):
        log(f"line {number}")
    assert len(capsys.readouterr().out.splitlines()) == TAIL_LINES + 5
    assert len(log.tail) == TAIL_LINES
    assert log.tail[-1] == f"[   1.50s] line {TAIL_LINES + 4}"


def test_lines_that_cannot_be_printed_stay_in_the_tail(monkeypatch):
    monkeypatch.setattr("builtins.print", full_disk)
    log = Log(lambda: 0.0)
    log("first")
    log("second")
    assert [line.split()[-1] for line in log.tail] == ["first", "second"]


def test_progress_is_replaced_whole_and_readable(tmp_path: Path):
    file = ProgressFile(tmp_path, Log(lambda: 0.0))
    file(progress("warmup", 1))
    document = json.loads((tmp_path / "progress.json").read_text())
    assert schema.from_json(Progress, document) == progress("warmup", 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["progress.json"]


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("bench.harness.record.time.monotonic", lambda: now[0])
    return now


def test_progress_is_written_at_most_four_times_a_second_and_a_new_phase_at_once(tmp_path: Path, clock):
    file = ProgressFile(tmp_path, Log(lambda: 0.0))
    file(progress("warmup", 1))
    for step, after, expected in ((1, 0.0, 1), (2, 0.1, 1), (3, 0.1, 1), (4, 0.1, 4), (5, 0.2, 4), (6, 0.2, 6)):
        clock[0] += after
        file(progress("measure", step))
        shown = json.loads((tmp_path / "progress.json").read_text())
        assert (shown["phase"], shown["step"]) == ("measure", expected)


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: Path, capsys):
    log = Log(lambda: 0.0)
    file = ProgressFile(tmp_path / "gone", log)
    for number, phase in enumerate(("warmup", "measure"), 1):
        file(progress(phase, number))
    (line,) = capsys.readouterr().out.splitlines()
    assert "progress.json: " in line
    assert "No such file or directory" in line
