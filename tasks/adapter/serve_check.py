"""`inv serve.check`: does a server answer as the trained adapter did?

Two kinds of questions are asked greedily: `train.prompts`, which go through the server's own chat template and were
answered at the end of the training; and the held-out prompts of `inv adapter.check`, which hold the template already.
Greedy answers part where two tokens are about as likely and one machine rounds otherwise; so an answer counts as alike
when it begins with the same `ALIKE_CHARS` characters. Less than half of them alike is another model or template.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from invoke.context import Context

from remote.serving.client import BadServer, Said, ServerClient, ServerUnavailable, connect
from remote.serving.pod_transport import request_in_pod
from tasks.adapter.artifact import TrainedAdapter, open_training
from tasks.adapter.serve import CLUSTER, server_pod
from tasks.cli.terminal import console, ruled
from tasks.clients import secrets
from tasks.errors import RetryableError, TaskFailed, UsageError, one_line
from tasks.settings.load import Settings, load

T = TypeVar("T")
ALIKE_CHARS, SHOWN_CHARS = 20, 60
MOST_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class CheckedPrompt:
    """A question as it was put, the answer on record, and the server's."""

    kind: str
    prompt: str
    recorded: str
    said: Said

    @property
    def is_same(self) -> bool:
        return self.said.text == self.recorded

    @property
    def is_alike(self) -> bool:
        return self.said.text[:ALIKE_CHARS] == self.recorded[:ALIKE_CHARS]


def check_served(context: Context, url: str, run: str | None, *, model: str | None, key_file: str | None) -> None:
    settings = load(context)
    trained = open_training(settings, run)
    asked = server_error_context(
        settings, url, model, key_file, lambda server, name: list(questions(trained, server, name))
    )
    table = ruled("question", "as recorded", "the server says", "")
    for one in asked:
        verdict = "same" if one.is_same else "alike" if one.is_alike else "differs"
        ended = "" if one.said.has_ended else ", did not end"
        texts = (one.prompt[-SHOWN_CHARS:], one.recorded, one.said.text)
        table.add_row(*(one_line(text[:SHOWN_CHARS]) for text in texts), f"{verdict}{ended}")
    console().print(table)
    print(conclusion(trained, url, asked))


def questions(trained: TrainedAdapter, server: ServerClient, model: str) -> Iterator[CheckedPrompt]:
    """Everything that has an answer on record, asked. Raises UsageError where nothing has."""
    training = trained.trial.training
    most = MOST_TOKENS if training is None else training.answer_tokens
    found = 0
    for one in trained.record.answers:
        if one.after:
            found += 1
            said = server.chat(model, [{"role": "user", "content": one.prompt}], most)
            yield CheckedPrompt(kind="chat", prompt=one.prompt, recorded=one.after, said=said)
    checked = trained.check()
    if checked is not None:
        form = checked.forms[-1] if checked.merged is not None else checked.forms[0]
        for prompt, answer in zip(checked.prompts, form.answers, strict=True):
            found += 1
            yield CheckedPrompt(
                kind="held out", prompt=prompt, recorded=answer, said=server.complete(model, prompt, MOST_TOKENS)
            )
    if not found:
        run_id = trained.run.run_id
        raise UsageError(
            f"run {run_id}: no answer is on record to compare with; type: inv adapter.check --run={run_id}"
        )


def conclusion(trained: TrainedAdapter, url: str, asked: list[CheckedPrompt]) -> str:
    """One line on success. Raises TaskFailed where the server is not the trained adapter."""
    same, alike = sum(one.is_same for one in asked), sum(one.is_alike for one in asked)
    endless = sum(one.kind == "held out" and not one.said.has_ended for one in asked)
    checked = trained.check()
    allowed = 0 if checked is None else checked.forms[0].unended
    counts = f"{same} of {len(asked)} answers are the same, {alike} begin alike"
    if 2 * alike < len(asked):
        raise TaskFailed(
            f"{url} does not answer as run {trained.run.run_id} did: {counts}; is the adapter loaded, and the template "
            "that of its folder?"
        )
    if endless > allowed:
        raise TaskFailed(
            f"{url}: {endless} answers did not end within {MOST_TOKENS} tokens, {allowed} as it was trained; the "
            "server must end answers at the trained token (generation_config.json: eos_token_id)"
        )
    return f"{url} answers as run {trained.run.run_id} did: {counts}"


def server_error_context(
    settings: Settings, url: str, model: str | None, key_file: str | None, ask: Callable[[ServerClient, str], T]
) -> T:
    """What `ask` finds of the server's model; errors as those of a task."""
    if url == CLUSTER and key_file is not None:
        raise UsageError("--key-file: the server of `inv serve` is asked in its pod, which has its key; leave it out")
    key = None if key_file is None else secrets.read(settings, "--key-file", key_file, in_header=True)
    try:
        if url == CLUSTER:
            server, model = request_in_pod(server_pod(settings)), model or settings.serve.name
        else:
            server = connect(url, key)
        names = server.models()
        if model is None and len(names) > 1:
            raise UsageError(f"{url}: serves {', '.join(map(one_line, names))}; name one with --model")
        if model is not None and model not in names:
            raise UsageError(f"{url}: serves {', '.join(map(one_line, names))}, not {model}")
        return ask(server, model or names[0])
    except BadServer as error:
        raise UsageError(str(error)) from None
    except ServerUnavailable as error:
        raise RetryableError(f"{error}; when it answers, type the same again") from None
