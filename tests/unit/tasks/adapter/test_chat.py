"""Questions to a server, line by line, and to the adapter itself, all at once."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from tasks.adapter import artifact as training
from tasks.adapter import chat
from tasks.adapter.artifact import TrainedAdapter
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tests.support.machines.fake_openai import StandIn


def typed(lines: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    monkeypatch.setattr(chat, "load", lambda _context: Settings(root=tmp_path))


def test_a_chat_remembers_its_turns_until_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("one\ntwo\n\nthree\n", monkeypatch, tmp_path)
    with StandIn({"two": "2\x1b[2J\nsecond line"}) as server:
        chat.chat(Context(), server.url, None, model=None, key_file=None)
    assert [len(one["messages"]) for one in server.asked] == [1, 3, 1]
    assert capsys.readouterr().out == "?\n2\\x1b[2J\nsecond line\n?\n"


def test_the_adapter_itself_gets_all_questions_at_once_on_a_worker(
    trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def work(_settings: object, _host: object, what: str, wish: dict[str, Any], hear: Any) -> None:
        asked.append({"what": what, **json.loads(json.dumps(wish))})
        hear("an answer\x1b[2J\nof two lines")

    monkeypatch.setattr(chat, "open_training", lambda _settings, _run: trained)
    monkeypatch.setattr(training, "workers", lambda _settings: [None])
    monkeypatch.setattr(training, "refuse_busy_workers", lambda _settings, _hosts: None)
    monkeypatch.setattr(training, "adapter_work", work)
    typed("one\ntwo\n\n\nthree", monkeypatch, tmp_path)
    chat.chat(Context(), "adapter", None, model=None, key_file=None)
    assert (asked[0]["what"], asked[0]["conversations"]) == ("chat", [["one", "two"], ["three"]])
    assert (asked[0]["model_sha256"], asked[0]["adapter"]) == ("m" * 64, str(trained.adapter))
    assert capsys.readouterr().out == "an answer\\x1b[2J\nof two lines\n"
    typed("\n \n", monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="no question on standard input"):
        chat.chat(Context(), "adapter", None, model=None, key_file=None)


def test_flags_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typed("", monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="are for a server"):
        chat.chat(Context(), "adapter", None, model="m", key_file=None)
    with pytest.raises(UsageError, match="a server has its model already"):
        chat.chat(Context(), "http://127.0.0.1:9", "r", model=None, key_file=None)
    with pytest.raises(
        UsageError, match="--key-file: the server of `inv serve` is asked in its pod, which has its key"
    ):
        chat.chat(Context(), "cluster", None, model=None, key_file="key")
