"""Tests of `inv serve.check` (same or similar answers, another model, answers without end) and of `inv chat`."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from tasks.adapter import artifact, questions
from tasks.adapter.artifact import TrainedAdapter
from tasks.clients.workers import BenchProgram
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.settings.layers import Settings
from tests.support.answers import print_answer
from tests.support.machines.fake_openai import FakeOpenAI
from tests.unit.tasks.adapter.conftest import adapter_check, form, save_check

LONG = "The number of items in a container."
RECORDED = {"<s>?": LONG, "?": LONG, "<s>!": "no"}


@pytest.fixture
def answered(trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch) -> TrainedAdapter:
    """Return a training with recorded answers to two held-out prompts, one of them a single question."""
    forms = [form("trained", answers=[LONG, "no"])]
    checked = adapter_check(prompts=["<s>?", "<s>!"], questions=["?", None], forms=forms)
    save_check(trained, checked)
    monkeypatch.setattr(questions, "open_training", lambda _settings, _run: trained)
    monkeypatch.setattr(questions, "load", lambda _context: None)
    return trained


def check(url: str, **options: str) -> None:
    values: Any = {"model": None, "key_file": None} | options
    print_answer(questions.check_served(Context(), url, None, **values))


def test_a_server_that_answers_as_recorded_passes(answered: TrainedAdapter, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI(RECORDED) as server:
        check(server.url)
    assert [("messages" in request, request["max_tokens"]) for request in server.requests] == [
        (False, 512),
        (True, 512),
        (False, 512),
    ]
    line = capsys.readouterr().out.splitlines()[-1]
    assert answered.run.run_id in line
    assert "3 of 3" in line


def test_an_answer_that_parts_late_is_alike_and_another_model_fails(
    answered: TrainedAdapter, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeOpenAI(RECORDED | {"?": "The number of items in a list."}) as server:
        check(server.url)
        assert re.search(r"2 of 3 .*, 3 ", capsys.readouterr().out.splitlines()[-1])
        server.answers = {}
        with pytest.raises(TaskFailed, match=f"{answered.run.run_id}: 0 of 3"):
            check(server.url)
        server.answers, server.reason = RECORDED, "length"
        with pytest.raises(TaskFailed, match=r": 2 answers .* 512 tokens, 0 .*eos_token_id"):
            check(server.url)


@pytest.mark.usefixtures("answered")
def test_a_server_of_several_models_or_none_is_one_line() -> None:
    with FakeOpenAI(RECORDED, models=("base", "tuned")) as server:
        with pytest.raises(UsageError, match=r"base, tuned; .*--model"):
            check(server.url)
        with pytest.raises(UsageError, match="base, tuned, not other"):
            check(server.url, model="other")
        check(server.url, model="tuned")
    with pytest.raises(RetryableError, match=server.url):
        check(server.url)


def test_without_a_recorded_answer_the_command_that_records_some_is_named(answered: TrainedAdapter) -> None:
    (answered.folder / "adapter-check.json").unlink()
    with pytest.raises(UsageError, match=r"inv adapter\.check --run="):
        check("http://127.0.0.1:1")


def set_stdin(lines: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    monkeypatch.setattr(questions, "load", lambda _context: Settings(root=tmp_path))


def test_the_adapter_itself_gets_all_questions_at_once_on_a_worker(
    trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[dict[str, Any]] = []

    def run_command(_program: object, _host: object, name: str, request: dict[str, Any], on_line: Any) -> None:
        requests.append({"command": name, **json.loads(json.dumps(request))})
        on_line("an answer\x1b[2J\nof two lines")

    monkeypatch.setattr(questions, "open_training", lambda _settings, _run: trained)
    monkeypatch.setattr(artifact, "fleet_hosts", lambda _settings: [None])
    monkeypatch.setattr(artifact, "refuse_busy_workers", lambda *_: None)
    monkeypatch.setattr(BenchProgram, "run_adapter", run_command)
    set_stdin("one\ntwo\n\n\nthree", monkeypatch, tmp_path)
    questions.chat(Context(), None)
    (request,) = requests
    assert (request["command"], request["questions"]) == ("chat", ["one", "two", "three"])
    assert (request["model_sha256"], request["adapter"]) == ("m" * 64, str(trained.adapter))
    assert capsys.readouterr().out == "an answer\\x1b[2J\nof two lines\n"
    set_stdin("\n \n", monkeypatch, tmp_path)
    with pytest.raises(UsageError, match="inv chat"):
        questions.chat(Context(), None)
    with pytest.raises(UsageError, match=r"not UTF-8: caf"):
        questions._read_question("caf\udce9")
