"""A model folder's tokenizer by itself, without torch: a look at the data takes seconds less."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.stack import set_environment

Messages: TypeAlias = Sequence[dict[str, str]]
THREADS = "TOKENIZERS_PARALLELISM"  # tokenizers reads it at each call
# For a template that writes the day: with the day of now, the same data would be other examples tomorrow.
DAY = datetime(2026, 1, 1, tzinfo=UTC)
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


class ChatTemplate:
    """The model's chat template. It is a program of the model's author, run in jinja's sandbox: it may raise anything.

    `apply_chat_template` prepares for each conversation whatever a template may be given, which takes longer than the
    template does. So the template that transformers has compiled is called, if it writes PROBE as that method does.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._write = tokenizer, self._whole
        with contextlib.suppress(Exception):  # the template's own, or of another version of transformers
            of_transformers = importlib.import_module("transformers.utils.chat_template_utils")
            self._template = of_transformers._compile_jinja_template(tokenizer.get_chat_template())
            # A chain of dicts, which is copied slowly; transformers has it cached, and writes from it too.
            self._template.globals = {**self._template.globals, "strftime_now": lambda form: DAY.strftime(form)}
            given = {"tools": None, "documents": None, **tokenizer.special_tokens_map}
            self._given = self._template.globals | given
            if all(self._bare(PROBE, prompt) == self._whole(PROBE, prompt) for prompt in (False, True)):
                self._write = self._bare

    def text(self, place: str, messages: Messages, *, prompt: bool = False) -> str:
        """A conversation as the template writes it; `place` is where it stands. Raises InputError."""
        try:
            return self._write(messages, prompt)
        except Exception as error:  # noqa: BLE001 - see above
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{place}: the model's chat template refuses it: {why}") from None

    def _whole(self, messages: Messages, prompt: bool) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))

    def _bare(self, messages: Messages, prompt: bool) -> str:
        given = {**self._given, "messages": messages, "add_generation_prompt": prompt}
        return "".join(self._template.root_render_func(self._template.new_context(given, shared=True)))
