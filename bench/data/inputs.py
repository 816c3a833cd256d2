"""Facts about a trial's checked inputs: model folder, data file and conversations. Only the standard library."""

from dataclasses import dataclass
from typing import TypeAlias

from bench.records.validation import printable


class InputError(ValueError):
    """Unusable input of a trial. The message is one line that says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class InputRejected(InputError):
    """Input that must not be used: it is damaged or not the expected one, and there is no intact copy."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a usable model folder. `sha256` covers only the files that affect the computation.

    `files` is their number, `bytes` their total size; `layers` are the names of the linear layers (q_proj, ...).
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
    """Facts about a usable data file. `samples` counts lines with text of user and assistant, `skipped` the others."""

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
