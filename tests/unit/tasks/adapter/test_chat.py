"""Tests of `inv chat`: questions to a server line by line, and to the adapter itself all at once."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from tasks.adapter import artifact as training
from tasks.adapter import questions
from tasks.adapter.artifact import TrainedAdapter
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tests.support.machines.fake_openai import FakeOpenAI


def set_stdin(lines: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    monkeypatch.setattr(questions, "load", lambda _context: Settings(root=tmp_path))


def test_a_chat_remembers_its_turns_until_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_stdin("one\ntwo\n\nthree\n", monkeypatch, tmp_path)
    with FakeOpenAI({"two": "2\x1b[2J\nsecond line"}) as server:
        questions.chat(Context(), server.url, None, model=None, key_file=None)
    assert [len(request["messages"]) for request in server.requests] == [1, 3, 1]
    assert capsys.readouterr().out == "?\n2\\x1b[2J\nsecond line\n?\n"


def test_the_adapter_itself_gets_all_questions_at_once_on_a_worker(
    trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[dict[str, Any]] = []

    def run_command(_settings: object, _host: object, name: str, request: dict[str, Any], on_line: Any) -> None:
        requests.append({"command": name, **json.loads(json.dumps(request))})
        on_line("an answer\x1b[2J\nof two lines")

    monkeypatch.setattr(questions, "open_training", lambda _settings, _run: trained)
    monkeypatch.setattr(training, "fleet_hosts", lambda _settings: [None])
    monkeypatch.setattr(training, "refuse_busy_workers", lambda _settings, _hosts: None)
    monkeypatch.setattr(training, "run_adapter_command", run_command)
    set_stdin("one\ntwo\n\n\nthree", monkeypatch, tmp_path)
    questions.chat(Context(), "adapter", None, model=None, key_file=None)
    (request,) = requests
    assert (request["command"], request["conversations"]) == ("chat", [["one", "two"], ["three"]])
    assert (request["model_sha256"], request["adapter"]) == ("m" * 64, str(trained.adapter))
    assert capsys.readouterr().out == "an answer\\x1b[2J\nof two lines\n"
    set_stdin("\n \n", monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="inv chat adapter"):
        questions.chat(Context(), "adapter", None, model=None, key_file=None)


def test_flags_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_stdin("", monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="--model and --key-file"):
        questions.chat(Context(), "adapter", None, model="m", key_file=None)
    with pytest.raises(UsageError, match="--run"):
        questions.chat(Context(), "http://127.0.0.1:9", "r", model=None, key_file=None)
    with pytest.raises(UsageError, match="--key-file"):
        questions.chat(Context(), "cluster", None, model=None, key_file="key")
