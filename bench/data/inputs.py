"""Facts about a trial's checked inputs: model folder, data file and conversations. Only the standard library."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bench.records.status import Failure, ReasonCode


class InputError(Failure, ValueError):
    """Unusable input of a trial."""

    reason_code = ReasonCode.BAD_INPUT


class InputRejected(InputError):
    """Input that must not be used: it is damaged or not the expected one, and there is no intact copy."""

    reason_code = ReasonCode.INPUT_REJECTED


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a usable model folder. `sha256` and `bytes` are those of the files that affect the computation."""

    sha256: str
    parameters: int
    bytes: int
    max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts about a usable data file. `samples` counts lines with an answer, `skipped` the others."""

    sha256: str
    samples: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One line of a data file: its file and line, such as "line 3", and its turns as (role, content).

    `digest` is the sha256 of the turns:
    equal for lines of any kind with the same turns. The first `prompt_turns` turns are the prompt; answers in it, and
    turns in `untrained`, which the line excludes, are not trained on.

    `additions` has the further keys of a turn's message by its index: `tool_calls` and thoughts, or `name` and
    `tool_call_id` of a result. With `is_text` the only turn is a text that no template is applied to.
    """

    file: str
    line: str
    turns: tuple[tuple[str, str], ...]
    digest: bytes
    prompt_turns: int = 0
    untrained: tuple[int, ...] = ()
    unread_keys: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    additions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    is_text: bool = False

    @property
    def answers(self) -> list[int]:
        """Indices of the turns to train on: the assistant's that are not blank, not in the prompt and not excluded.

        Nothing precedes the first turn of several, so it is not one of them.
        """
        first = self.prompt_turns or (len(self.turns) > 1 and not self.is_text)
        return [
            index
            for index, (role, _) in enumerate(self.turns)
            if role == "assistant" and index >= first and index not in self.untrained and not self.is_blank(index)
        ]

    def is_blank(self, index: int) -> bool:
        """Return whether a turn has neither text nor calls."""
        return not self.turns[index][1].strip() and "tool_calls" not in self.additions.get(index, ())

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in self.turns]
        for index, addition in self.additions.items():
            messages[index].update(addition)
        return messages

    def first_turns(self, count: int) -> Conversation:
        """Return the conversation of the first turns."""
        additions = {index: addition for index, addition in self.additions.items() if index < count}
        return dataclasses.replace(self, turns=self.turns[:count], additions=additions)

    def with_system(self, text: str | None) -> Conversation:
        """Return the conversation after a system's turn with this text, unless it has one or there is no text."""
        if text is None or self.is_text or self.turns[0][0] in ("system", "developer"):
            return self
        return dataclasses.replace(
            self,
            turns=(("system", text), *self.turns),
            prompt_turns=self.prompt_turns + (self.prompt_turns > 0),
            untrained=tuple(index + 1 for index in self.untrained),
            additions={index + 1: addition for index, addition in self.additions.items()},
        )

    @property
    def location(self) -> str:
        return f"{self.file}: {self.line}"


Inputs: TypeAlias = tuple[ModelFacts, DataFacts, list[Conversation]]
