"""A model folder's tokenizer by itself, without torch: a look at the data takes seconds less."""

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
THREADS = "TOKENIZERS_PARALLELISM"  # tokenizers reads it at each call
# For a template that writes the day: with the day of now, the same data would be other examples tomorrow.
DAY = datetime(2026, 1, 1, tzinfo=UTC)
# Of computing, for one conversation: one of 10,000 turns takes some milliseconds, and a loop that writes without end
# takes less than 2 GB in that time.
LONGEST_SEC = 10.0
PROBE = ({"role": "user", "content": "a?"}, {"role": "assistant", "content": "A."})


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer.json with its settings and chat template. Raises InputError."""
    check_model(folder)
    set_environment()
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: its tokenizer cannot be loaded: {' '.join(str(error).split())}") from None


@contextlib.contextmanager
def every_core() -> Iterator[None]:
    """Tokenizers take every core of this process. Nothing may be forked meanwhile: it would wait for threads that it
    does not have."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "true"
    try:
        yield
    finally:
        os.environ[THREADS] = before or "false"


class _TemplateTimeout(Exception):
    """A template took longer than `LONGEST_SEC`."""


def _stop(_number: int, _frame: object) -> None:
    raise _TemplateTimeout


class ChatTemplate:
    """The model's chat template. It is a program of the model's author, run in jinja's sandbox: it may raise anything,
    and it may not end, which the sandbox allows.

    `apply_chat_template` prepares for each conversation whatever a template may be given, which takes longer than the
    template does. So the template that transformers has compiled is called, if it writes PROBE as that method does.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._write = tokenizer, self._whole
        self._thread: int | None = None  # the one that can be interrupted: the main one
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.get_ident()
            signal.signal(signal.SIGVTALRM, _stop)  # once: it takes longer than to write a short conversation
        with contextlib.suppress(Exception):  # the template's own, or of another version of transformers
            of_transformers = importlib.import_module("transformers.utils.chat_template_utils")
            self._template = of_transformers._compile_jinja_template(tokenizer.get_chat_template())
            # A chain of dicts, which is copied slowly; transformers has it cached, and writes from it too.
            self._template.globals = {**self._template.globals, "strftime_now": lambda form: DAY.strftime(form)}
            given = {"tools": None, "documents": None, **tokenizer.special_tokens_map}
            self._given = self._template.globals | given
            if all(self._in_time(self._bare, PROBE, prompt) == self._whole(PROBE, prompt) for prompt in (False, True)):
                self._write = self._bare

    def text(self, place: str, messages: Messages, *, prompt: bool = False) -> str:
        """A conversation as the template writes it; `place` is where it stands. Raises InputError."""
        try:
            return self._in_time(self._write, messages, prompt)
        except _TemplateTimeout:
            raise InputError(
                f"{place}: the model's chat template has not ended after {LONGEST_SEC:g} s of computing; look at its "
                "loops in the model's folder, or take another model"
            ) from None
        except Exception as error:  # noqa: BLE001 - see above
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{place}: the model's chat template refuses it: {why}") from None

    def _in_time(self, write: Callable[[Messages, bool], str], messages: Messages, prompt: bool) -> str:
        """What `write` returns. Raises _Endless after `LONGEST_SEC` of this process's own computing: a machine that
        stands still counts for nothing. Not covered: a single operation of Python that does not end, another thread.
        """
        if threading.get_ident() != self._thread:
            return write(messages, prompt)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SEC, LONGEST_SEC)  # again, where jinja caught the first
        try:
            return write(messages, prompt)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _whole(self, messages: Messages, prompt: bool) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))

    def _bare(self, messages: Messages, prompt: bool) -> str:
        given = {**self._given, "messages": messages, "add_generation_prompt": prompt}
        return "".join(self._template.root_render_func(self._template.new_context(given, shared=True)))
