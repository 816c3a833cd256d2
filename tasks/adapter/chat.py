"""`inv chat`: questions to a server, or to the adapter itself on the fleet's first worker.

Each line of standard input is a turn; an empty line starts a new conversation. A server answers line by line. For a
worker all lines are read first, because the model is loaded once for all of them.
"""

import sys
from collections.abc import Iterable

from invoke.context import Context

from remote.serving import ServerClient
from tasks.adapter.artifact import open_training, run_on_worker
from tasks.adapter.serve_check import MAX_TOKENS, with_server
from tasks.cli.lock import acquire_lock
from tasks.errors import UsageError, escape_controls
from tasks.settings.load import Settings, load

ADAPTER_URL = "adapter"  # stands for the adapter itself instead of a server


def chat(context: Context, url: str, run: str | None, *, model: str | None, key_file: str | None) -> None:
    settings = load(context)
    if url == ADAPTER_URL:
        if model or key_file:
            raise UsageError("chat: --model and --key-file are for a server", remedy="omit them")
        _chat_with_adapter(settings, run)
        return
    if run is not None:
        raise UsageError(
            "chat: --run: not for a server, which has its own model", remedy="omit it, or type `inv chat adapter`"
        )
    with_server(settings, url, model, key_file, _chat_with_server)


def _chat_with_adapter(settings: Settings, run: str | None) -> None:
    trained = open_training(settings, run)
    if sys.stdin.isatty():
        print("one question per line; an empty line starts a new conversation; Ctrl-D sends all", flush=True)
    conversations = split_conversations(sys.stdin)
    if not conversations:
        raise UsageError(
            "chat: no question on standard input", remedy="for example: echo 'What is it?' | inv chat adapter"
        )
    with acquire_lock(settings.results_folder, f"chat (run {trained.run.run_id})"):
        request = {"trial": trained.trial.to_json(), "conversations": conversations, "most": MAX_TOKENS}
        run_on_worker(settings, trained, "chat", request, _print_answer)


def split_conversations(lines: Iterable[str]) -> list[list[str]]:
    """Return the turns of each conversation; an empty line ends a conversation."""
    conversations: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            conversations[-1].append(line.strip())
        elif conversations[-1]:
            conversations.append([])
    return [turns for turns in conversations if turns]


def _chat_with_server(server: ServerClient, model: str) -> None:
    has_terminal = sys.stdin.isatty()
    turns: list[dict[str, str]] = []
    while True:
        if has_terminal:
            print(f"{model}> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if not line.strip():
            turns = []
            continue
        turns.append({"role": "user", "content": line.strip()})
        reply = server.chat(model, turns, MAX_TOKENS)
        turns.append({"role": "assistant", "content": reply.text})
        _print_answer(reply.text if reply.has_ended else f"{reply.text} [not ended after {MAX_TOKENS} tokens]")


def _print_answer(text: str) -> None:
    """Print an answer's lines with escaped control characters."""
    print("\n".join(map(escape_controls, text.splitlines())), flush=True)
