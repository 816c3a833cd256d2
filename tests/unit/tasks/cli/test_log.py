"""The log of a command: where it goes, what it masks, and that it never fails the command."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.hosts import command
from remote.hosts.command import MASK, Secret
from tasks.cli import log

logger = logging.getLogger("tasks.example")


@pytest.fixture(autouse=True)
def restored_loggers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(command, "_known_values", set[str]())  # other tests' secrets are parts of words
    packages = [logging.getLogger(name) for name in log.PACKAGES]
    state = [(package.level, package.propagate, package.handlers) for package in packages]
    previous = log._operator_log
    log.start_log()
    yield
    for package, (level, propagate, handlers) in zip(packages, state, strict=True):
        package.level, package.propagate, package.handlers = level, propagate, handlers
    log._operator_log = previous


def text_of(folder: Path) -> str:
    return (folder / log.LOG_FILE).read_text()


def test_a_runs_log_begins_with_the_records_before_it_was_opened(tmp_path: Path) -> None:
    logger.debug("first")
    log.open_run_log(tmp_path)
    logger.debug("second")
    lines = text_of(tmp_path).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["first", "second"]
    assert " DEBUG " in lines[0]
    assert " tasks.example " in lines[0]
    assert (tmp_path / log.LOG_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("level", "is_written"), [(logging.DEBUG, False), (logging.INFO, True)])
def test_a_command_without_a_run_writes_only_what_happened(tmp_path: Path, level: int, is_written: bool) -> None:
    log.log_command("build", tmp_path / "results")
    logger.log(level, "pushed")
    assert (tmp_path / "results" / log.LOG_FILE).exists() is is_written
    assert (tmp_path / "results").exists() is is_written


def test_the_log_has_the_chain_of_causes_without_secrets_and_terminal_controls(tmp_path: Path) -> None:
    secret = Secret("-".join(['se"cret', "va'lue"]))  # joined: a traceback prints this file's lines
    log.open_run_log(tmp_path)
    try:
        try:
            raise OSError(f"cause {secret.reveal()} \x1b[31m")
        except OSError as error:
            raise ValueError(f"effect {json.dumps(secret.reveal())}\nforged {secret.reveal()}") from error
    except ValueError:
        logger.exception("failed")
    text = text_of(tmp_path)
    assert "OSError" in text
    assert "ValueError" in text
    assert secret.reveal() not in text
    assert json.dumps(secret.reveal())[1:-1] not in text
    assert "\x1b" not in text
    assert MASK in text
    assert all(line.startswith("    ") for line in text.splitlines()[1:])  # no text forges a record


def test_debug_or_its_variable_prints_on_standard_error_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log.DEBUG_VARIABLE, "1")
    log.start_log()
    log.print_debug()
    logger.debug("shown")
    assert capsys.readouterr().err.count("shown") == 1


def test_a_large_log_is_renamed_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_LOG_BYTES", 10)
    (tmp_path / log.LOG_FILE).write_text("long ago, long ago")
    log.open_run_log(tmp_path)
    logger.info("now")
    assert "now" in text_of(tmp_path)
    assert "long ago" not in text_of(tmp_path)
    assert "long ago" in (tmp_path / f"{log.LOG_FILE}.1").read_text()


@pytest.mark.parametrize("obstacle", ["link", "pipe", "missing"])
def test_what_is_in_the_logs_place_is_not_written_to(tmp_path: Path, obstacle: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    path = run / log.LOG_FILE
    elsewhere.write_text("kept")
    match obstacle:
        case "link":
            path.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(path)
        case "missing":
            run.rmdir()
    log.open_run_log(run)
    logger.error("not written")
    assert elsewhere.read_text() == "kept"
