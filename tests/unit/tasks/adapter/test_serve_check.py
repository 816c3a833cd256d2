"""Tests of `inv serve.check`: same answers, similar answers, another model, answers that do not end."""

import dataclasses
import re

import pytest
from invoke import Context

from bench.records.training import SampleAnswer
from tasks.adapter import questions
from tasks.adapter.artifact import TrainedAdapter
from tasks.errors import RetryableError, TaskFailed, UsageError
from tests.support.machines.fake_openai import FakeOpenAI
from tests.unit.tasks.adapter.conftest import adapter_check, save_check

RECORDED = {"What is len?": "The number of items in a container.", "<s>?": "yes", "<s>!": "no"}


@pytest.fixture
def answered(trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch) -> TrainedAdapter:
    """Return a training with a recorded answer to one sample prompt and to two held-out prompts."""
    answers = [SampleAnswer(prompt="What is len?", before=None, after=RECORDED["What is len?"])]
    with_answers = dataclasses.replace(trained, record=dataclasses.replace(trained.record, answers=answers))
    save_check(with_answers, adapter_check(prompts=["<s>?", "<s>!"], places=["a", "b"]))
    monkeypatch.setattr(questions, "open_training", lambda _settings, _run: with_answers)
    monkeypatch.setattr(questions, "load", lambda _context: None)
    return with_answers


def check(url: str, **options: str) -> None:
    questions.check_served(Context(), url, None, **({"model": None, "key_file": None} | options))  # type: ignore[arg-type]


def test_a_server_that_answers_as_recorded_passes(answered: TrainedAdapter, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI(RECORDED) as server:
        check(server.url)
    assert [("messages" in request, request["max_tokens"]) for request in server.requests] == [
        (True, 64),
        (False, 512),
        (False, 512),
    ]
    line = capsys.readouterr().out.splitlines()[-1]
    assert answered.run.run_id in line
    assert "3 of 3" in line


def test_an_answer_that_parts_late_is_alike_and_another_model_fails(
    answered: TrainedAdapter, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeOpenAI(RECORDED | {"What is len?": "The number of items in a list."}) as server:
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
    bare = dataclasses.replace(answered, record=dataclasses.replace(answered.record, answers=[]))
    (bare.folder / "adapter-check.json").unlink()
    with (
        FakeOpenAI({}) as server,
        pytest.raises(UsageError, match=r"inv adapter\.check --run="),
    ):
        list(questions.query_server(bare, questions.connect(server.url, None), "tuned"))
