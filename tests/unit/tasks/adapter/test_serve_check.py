"""A server asked what the training has answered: the same, alike, another model, one that does not end."""

import dataclasses

import pytest
from invoke import Context

from bench.records.training import SampleAnswer
from tasks.adapter import serve_check
from tasks.adapter.artifact import TrainedAdapter
from tasks.errors import RetryableError, TaskFailed, UsageError
from tests.support.machines.fake_openai import StandIn
from tests.unit.tasks.adapter.conftest import checked, keep

RECORDED = {"What is len?": "The number of items in a container.", "<s>?": "yes", "<s>!": "no"}


@pytest.fixture
def answered(trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch) -> TrainedAdapter:
    """A training with one prompt's answer and two held-out ones on record."""
    answers = [SampleAnswer(prompt="What is len?", before=None, after=RECORDED["What is len?"])]
    found = dataclasses.replace(trained, record=dataclasses.replace(trained.record, answers=answers))
    keep(found, checked(prompts=["<s>?", "<s>!"], places=["a", "b"]))
    monkeypatch.setattr(serve_check, "open_training", lambda _settings, _run: found)
    monkeypatch.setattr(serve_check, "load", lambda _context: None)
    return found


def check(url: str, **given: str) -> None:
    serve_check.check_served(Context(), url, None, **({"model": None, "key_file": None} | given))  # type: ignore[arg-type]


def test_a_server_that_answers_as_recorded_passes(answered: TrainedAdapter, capsys: pytest.CaptureFixture[str]) -> None:
    with StandIn(RECORDED) as server:
        check(server.url)
    assert [("messages" in one, one["max_tokens"]) for one in server.asked] == [(True, 64), (False, 512), (False, 512)]
    assert f"answers as run {answered.run.run_id} did: 3 of 3 answers are the same" in capsys.readouterr().out


def test_an_answer_that_parts_late_is_alike_and_another_model_fails(
    answered: TrainedAdapter, capsys: pytest.CaptureFixture[str]
) -> None:
    with StandIn(RECORDED | {"What is len?": "The number of items in a list."}) as server:
        check(server.url)
        assert "2 of 3 answers are the same, 3 begin alike" in capsys.readouterr().out
        server.answers = {}
        with pytest.raises(TaskFailed, match=f"does not answer as run {answered.run.run_id} did: 0 of 3"):
            check(server.url)
        server.answers, server.reason = RECORDED, "length"
        with pytest.raises(TaskFailed, match=r"2 answers did not end within 512 tokens, 0 as it was trained"):
            check(server.url)


@pytest.mark.usefixtures("answered")
def test_a_server_of_several_models_or_none_is_one_line() -> None:
    with StandIn(RECORDED, models=("base", "tuned")) as server:
        with pytest.raises(UsageError, match="serves base, tuned; name one with --model"):
            check(server.url)
        with pytest.raises(UsageError, match="serves base, tuned, not other"):
            check(server.url, model="other")
        check(server.url, model="tuned")
    with pytest.raises(RetryableError, match="when it answers, type the same again"):
        check(server.url)


def test_without_any_answer_on_record_the_way_to_some_is_named(answered: TrainedAdapter) -> None:
    bare = dataclasses.replace(answered, record=dataclasses.replace(answered.record, answers=[]))
    (bare.folder / "adapter-check.json").unlink()
    with (
        StandIn({}) as server,
        pytest.raises(UsageError, match=r"no answer is on record to compare with; type: inv adapter\.check"),
    ):
        list(serve_check.questions(bare, serve_check.connect(server.url, None), "tuned"))
