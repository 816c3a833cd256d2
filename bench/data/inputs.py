"""The inputs of a trial, as values: what a checked model folder and data file hold. Standard library alone."""

from dataclasses import dataclass
from typing import TypeAlias

from bench.records.validation import printable


class InputError(ValueError):
    """An input that a trial cannot use; the message is one line and says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class InputRejected(InputError):
    """Going on would not be safe: what is there is damaged, and nothing whole is left of it."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A usable model folder. `sha256` covers the files that decide what is computed, and nothing else.

    `files` counts them, `bytes` is their size together; `layers` are the names of its linear layers (q_proj, ...).
    """

    path: str
    sha256: str
    parameters: int
    bytes: int
    files: int
    max_position_embeddings: int
    layers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """A usable data file; `samples` counts the lines with a user's and an assistant's text, `skipped` the others."""

    path: str
    sha256: str
    samples: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class ConversationStats:
    """One usable line of a data file: its number, from 1, and its messages."""

    line: int
    messages: list[dict[str, str]]


Inputs: TypeAlias = tuple[ModelFacts, DataFacts, list[ConversationStats]]
