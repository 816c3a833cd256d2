"""`inv chat`: questions to a server, or to the adapter itself on the fleet's first worker, to look at it.

Each line of standard input is a turn; an empty one begins a new conversation. A server answers line by line. On a
worker all lines are read first, because the model is loaded for them and then let go.
"""

import sys
from collections.abc import Iterable

from invoke.context import Context

from remote.serving.client import ServerClient
from tasks.adapter.artifact import on_worker, open_training
from tasks.adapter.serve_check import MOST_TOKENS, server_error_context
from tasks.cli.lock import acquire_lock
from tasks.errors import UsageError, one_line
from tasks.settings.load import Settings, load

ADAPTER = "adapter"  # instead of an address: the adapter itself


def chat(context: Context, url: str, run: str | None, *, model: str | None, key_file: str | None) -> None:
    settings = load(context)
    if url == ADAPTER:
        if model or key_file:
            raise UsageError("chat: --model and --key-file are for a server; leave them out")
        _with_adapter(settings, run)
        return
    if run is not None:
        raise UsageError("chat: --run: a server has its model already; leave it out, or type `inv chat adapter`")
    server_error_context(settings, url, model, key_file, _conversation)


def _with_adapter(settings: Settings, run: str | None) -> None:
    trained = open_training(settings, run)
    if sys.stdin.isatty():
        print("questions, one a line; an empty line begins anew; Ctrl-D asks them", flush=True)
    conversations = conversations_of(sys.stdin)
    if not conversations:
        raise UsageError("chat: no question on standard input; for example: echo 'What is it?' | inv chat adapter")
    with acquire_lock(settings.results_folder, f"chat (run {trained.run.run_id})"):
        wish = {"trial": trained.trial.to_json(), "conversations": conversations, "most": MOST_TOKENS}
        on_worker(settings, trained, "chat", wish, _show)


def conversations_of(lines: Iterable[str]) -> list[list[str]]:
    """The turns of each conversation; an empty line ends one."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [turns for turns in found if turns]


def _conversation(server: ServerClient, model: str) -> None:
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
        said = server.chat(model, turns, MOST_TOKENS)
        turns.append({"role": "assistant", "content": said.text})
        _show(said.text if said.has_ended else f"{said.text} [not ended after {MOST_TOKENS} tokens]")


def _show(text: str) -> None:
    """An answer's lines, with everything escaped that a terminal would obey."""
    print("\n".join(map(one_line, text.splitlines())), flush=True)
