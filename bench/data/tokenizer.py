"""A model folder's tokenizer by itself, without torch: a look at the data takes seconds less."""

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
