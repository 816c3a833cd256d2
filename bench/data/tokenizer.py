"""A model folder's tokenizer by itself, without torch: a look at the data takes seconds less."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.stack import set_environment


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer.json with its settings and chat template. Raises InputError."""
    check_model(folder)
    set_environment()
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: its tokenizer cannot be loaded: {' '.join(str(error).split())}") from None


def rendered(tokenizer: Any, place: str, messages: Sequence[dict[str, str]], *, prompt: bool = False) -> str:
    """A conversation as the model's chat template writes it; `place` is where it stands. Raises InputError.

    A template is a program of the model's author, run in jinja's sandbox: it may raise anything.
    """
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))
    except Exception as error:  # noqa: BLE001 - see above
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{place}: the model's chat template refuses it: {why}") from None
