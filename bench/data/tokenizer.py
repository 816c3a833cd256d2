"""A model folder's tokenizer and chat template, loaded without torch, which saves seconds."""

import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.torch_stack import set_environment

Messages: TypeAlias = Sequence[dict[str, str]]
PARALLELISM_VARIABLE = "TOKENIZERS_PARALLELISM"  # the library tokenizers reads it at each call
# Fixed date for templates that write the current one: the same data must give the same examples on every day.
TEMPLATE_DATE = datetime(2026, 1, 1, tzinfo=UTC)
# CPU time for one conversation: one of 10,000 turns takes some milliseconds, and an endless loop that writes takes less
# than 2 GB in that time.
TEMPLATE_TIMEOUT_SEC = 10.0
PROBE_MESSAGES = ({"role": "user", "content": "a?"}, {"role": "assistant", "content": "A."})


def load_tokenizer(folder: Path) -> Any:
    """Load the folder's tokenizer.json with its settings and chat template. Raises InputError."""
    check_model(folder)
    set_environment()
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: its tokenizer cannot be loaded: {' '.join(str(error).split())}") from error


@contextlib.contextmanager
def use_all_cores() -> Iterator[None]:
    """Let tokenizers use every core of this process. Do not fork inside: the child would wait for missing threads."""
    before = os.environ.get(PARALLELISM_VARIABLE)
    os.environ[PARALLELISM_VARIABLE] = "true"
    try:
        yield
    finally:
        os.environ[PARALLELISM_VARIABLE] = before or "false"


class TemplateTimeout(InputError):
    """A template took longer than `TEMPLATE_TIMEOUT_SEC` for a conversation."""


class _TimerFired(Exception):
    """The timer of `TEMPLATE_TIMEOUT_SEC` fired while a template rendered."""


def _on_timeout(_number: int, _frame: object) -> None:
    raise _TimerFired


class ChatTemplate:
    """The model's chat template: a third-party program in jinja's sandbox, which may raise anything or never end.

    `apply_chat_template` prepares every possible template variable for each conversation, which takes longer than the
    template itself. So the template compiled by transformers is called directly, if it renders PROBE_MESSAGES equally.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._render = tokenizer, self._render_by_transformers
        self._thread: int | None = None  # the main thread, the only one that signals can interrupt
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.get_ident()
            signal.signal(signal.SIGVTALRM, _on_timeout)  # once: slower than rendering a short conversation
        with contextlib.suppress(Exception):  # errors of the template, or another version of transformers
            template_utils = importlib.import_module("transformers.utils.chat_template_utils")
            self._template = template_utils._compile_jinja_template(tokenizer.get_chat_template())
            # Flatten the chain of dicts, which is slow to copy. transformers caches this template and renders with it.
            fixed_date = {"strftime_now": lambda form: TEMPLATE_DATE.strftime(form)}
            self._template.globals = {**self._template.globals, **fixed_date}
            variables = {"tools": None, "documents": None, **tokenizer.special_tokens_map}
            self._variables = self._template.globals | variables
            if all(self._renders_equally(prompt) for prompt in (False, True)):
                self._render = self._render_compiled

    def _renders_equally(self, prompt: bool) -> bool:
        compiled = self._with_timeout(self._render_compiled, PROBE_MESSAGES, prompt)
        return compiled == self._render_by_transformers(PROBE_MESSAGES, prompt)

    def render(self, location: str, messages: Messages, *, prompt: bool = False) -> str:
        """Render a conversation; `location` is its file and line, for messages. Raises InputError.

        Raises TemplateTimeout if the template does not end.
        """
        try:
            return self._with_timeout(self._render, messages, prompt)
        except _TimerFired as error:
            raise TemplateTimeout(
                f"{location}: the model's chat template did not end within {TEMPLATE_TIMEOUT_SEC:g} s of CPU time; "
                "check its loops in the model's folder, or use another model"
            ) from error
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{location}: rejected by the model's chat template: {why}") from error

    def _with_timeout(self, render: Callable[[Messages, bool], str], messages: Messages, prompt: bool) -> str:
        """Call `render`. Raises _TimerFired after `TEMPLATE_TIMEOUT_SEC` of this process's CPU time.

        Not covered: a single Python operation that does not end, and other threads.
        """
        if threading.get_ident() != self._thread:
            return render(messages, prompt)
        # Repeated, because jinja may catch the first signal's exception.
        signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_TIMEOUT_SEC, TEMPLATE_TIMEOUT_SEC)
        try:
            return render(messages, prompt)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _render_by_transformers(self, messages: Messages, prompt: bool) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))

    def _render_compiled(self, messages: Messages, prompt: bool) -> str:
        variables = {**self._variables, "messages": messages, "add_generation_prompt": prompt}
        return "".join(self._template.root_render_func(self._template.new_context(variables, shared=True)))
