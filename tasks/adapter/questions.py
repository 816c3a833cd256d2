"""`inv serve.check`: questions to a server; `inv chat`: to the adapter on the first worker.

The check compares a server's greedy answers with those that `inv adapter.check` recorded for held-out prompts. Each
prompt is sent with its template, and one that is a single question also as a chat, through the server's own template.
Greedy answers diverge where two tokens have nearly equal probability and two machines round differently. So answers
count as similar if their first `COMPARED_CHARS` characters are equal. If fewer than half are, the server has another
model or template.

In a chat each line of standard input is a question. All are read first, because the model is loaded once for all.
"""

import sys
from collections import Counter
from dataclasses import asdict, dataclass

from invoke.context import Context

from remote.serving import BadServer, ServerClient, ServerUnavailable
from tasks.adapter.artifact import TrainedAdapter, open_training, run_on_worker
from tasks.cli.command_result import CommandResult
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, ruled_table
from tasks.clients import secrets
from tasks.errors import RetryableError, TaskFailed, UsageError, escape_controls
from tasks.settings.layers import Settings, load

COMPARED_CHARS, SHOWN_CHARS = 20, 60
MAX_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class CheckedPrompt:
    """Prompt with the recorded answer and the server's."""

    kind: str
    prompt: str
    recorded: str
    answer: str
    has_ended: bool

    @property
    def verdict(self) -> str:
        if self.answer == self.recorded:
            return "same"
        return "similar" if self.answer[:COMPARED_CHARS] == self.recorded[:COMPARED_CHARS] else "differs"


def check_served(
    context: Context, url: str, run: str | None, *, model: str | None, key_file: str | None
) -> CommandResult:
    settings = load(context)
    trained = open_training(settings, run)
    prompts = ask_server(settings, trained, url, model, key_file)
    table = ruled_table("prompt", "recorded answer", "server's answer", "")
    for checked in prompts:
        ended = "" if checked.has_ended else ", did not end"
        texts = (checked.prompt[-SHOWN_CHARS:], checked.recorded, checked.answer)
        table.add_row(*(escape_controls(text[:SHOWN_CHARS]) for text in texts), f"{checked.verdict}{ended}")
    console().print(table)
    verdicts = Counter(checked.verdict for checked in prompts)
    similar = verdicts["same"] + verdicts["similar"]
    counts = f"{verdicts['same']} of {len(prompts)} answers are the same, {similar} start the same"
    failure = find_failure(trained, url, prompts, counts)
    if failure is None:
        print(f"{url} answers like run {trained.run.run_id}: {counts}")
    document = [{**asdict(checked), "verdict": checked.verdict} for checked in prompts]
    return CommandResult(data={"server": url, "run": trained.run.run_id, "prompts": document}, failure=failure)


def ask_server(
    settings: Settings, trained: TrainedAdapter, url: str, model: str | None, key_file: str | None
) -> list[CheckedPrompt]:
    """Send all prompts with a recorded answer to the server. Raises UsageError without any, and RetryableError."""
    check, run_id = trained.read_check(), trained.run.run_id
    if check is None or not check.prompts:
        remedy = f"type: inv adapter.check --run={run_id}" if trained.record.evaluations else "train with held-out data"
        raise UsageError(f"run {run_id}: no recorded answer to compare with", remedy=remedy)
    key = None if key_file is None else secrets.read_secret(settings, "--key-file", key_file, in_header=True)
    form, prompts = check.forms[-1 if check.merged is not None else 0], list[CheckedPrompt]()
    try:
        server = ServerClient(url, key)
        names = server.models()
        if model is None and len(names) > 1:
            raise UsageError(f"{url}: serves {', '.join(map(escape_controls, names))}", remedy="name one with --model")
        if model is not None and model not in names:
            raise UsageError(f"{url}: serves {', '.join(map(escape_controls, names))}, not {model}")
        model = model or names[0]
        for prompt, question, recorded in zip(check.prompts, check.questions, form.answers, strict=True):
            replies = [("held out", prompt, server.complete(model, prompt, MAX_TOKENS))]
            if question is not None:
                messages = [{"role": "user", "content": question}]
                replies.append(("chat", question, server.chat(model, messages, MAX_TOKENS)))
            prompts += [
                CheckedPrompt(kind=kind, prompt=text, recorded=recorded, answer=reply.text, has_ended=reply.has_ended)
                for kind, text, reply in replies
            ]
    except BadServer as error:
        raise UsageError.from_error(error) from error
    except ServerUnavailable as error:
        raise RetryableError.from_error(error, remedy="rerun the command when it answers") from error
    return prompts


def find_failure(trained: TrainedAdapter, url: str, prompts: list[CheckedPrompt], counts: str) -> TaskFailed | None:
    """Return why the server does not have the trained adapter, None if it has."""
    if 2 * sum(prompt.verdict == "differs" for prompt in prompts) > len(prompts):
        return TaskFailed(
            f"{url} does not answer like run {trained.run.run_id}: {counts}",
            remedy="check that the adapter is loaded, and that the template is the one of its folder",
        )
    unended = sum(prompt.kind == "held out" and not prompt.has_ended for prompt in prompts)
    checked = trained.read_check()
    allowed = 0 if checked is None else checked.forms[0].unended
    if unended > allowed:
        return TaskFailed(
            f"{url}: {unended} answers did not end within {MAX_TOKENS} tokens, {allowed} as trained",
            remedy="the server must end answers at the trained token (generation_config.json: eos_token_id)",
        )
    return None


def chat(context: Context, run: str | None) -> None:
    settings = load(context)
    trained = open_training(settings, run)
    if sys.stdin.isatty():
        print("one question per line; Ctrl-D sends all", flush=True)
    asked = [question for line in sys.stdin if (question := _read_question(line))]
    if not asked:
        raise UsageError("chat: no question on standard input", remedy="for example: echo 'What is it?' | inv chat")
    with acquire_lock(settings.results_folder, f"chat (run {trained.run.run_id})"):
        request = {
            "trial": trained.trial.to_json(),
            "questions": asked,
            "most": MAX_TOKENS,
            "end_ids": trained.record.end_ids,
        }
        run_on_worker(settings, trained, "chat", request)


def _read_question(line: str) -> str:
    """Return the line without white space around it. Raises UsageError if its bytes were not UTF-8."""
    if line != line.encode(errors="replace").decode():
        raise UsageError(f"chat: standard input is not UTF-8: {escape_controls(line.strip())[:60]}")
    return line.strip()
