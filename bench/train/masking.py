"""Conversations to what is trained on: token ids, and which of them are targets.

The model's own chat template writes the text. With `labels` "assistant" the targets are the tokens of the assistant's
turns and the token that ends each turn; with "all" every token is one. Where a turn begins and ends is found by
rendering, never by searching for text: the conversation up to the turn, with the template's generation prompt, is what
the model will be given at inference, and what the turn adds to it is what the model is to write.

Some templates write earlier turns differently once later ones follow (Mistral's puts the system's text before the last
question, Qwen's leaves out earlier thoughts). Such a conversation becomes one example for each of its answers, each
rendered as it will be at inference. Rendered as a whole it would teach a text that inference never shows.

A conversation over `max_seq_len` tokens is dropped, or cut after the last whole answer that fits. No answer is ever cut
inside, so none loses the token that ends it. Where the template writes no such token after the last answer, the
tokenizer's end-of-sequence token is added: without it answers never learn to end.
"""

from __future__ import annotations

import copy
import hashlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from bench.data.inputs import InputError
from bench.data.tokenizer import ChatTemplate, Messages
from bench.train.readers import RawConversation

AT_ONCE = 256  # conversations that are tokenized together
NAMED = 20  # places that are kept of each kind of finding
IDS_ALONE = {"return_attention_mask": False, "return_token_type_ids": False}


@dataclass(frozen=True, kw_only=True)
class Example:
    """What one forward pass learns from: `ids` and, for each of them, 1 where it is a target and 0 where it is not.

    The first id is never a target: nothing stands before it that could predict it. `file` and `line` are where it
    comes from, `copy` tells examples of one line apart that its file's weight repeats.
    """

    file: str
    line: int
    ids: array[int]
    targets: bytes
    copy: int = 0

    @property
    def digest(self) -> bytes:
        """Equal for equal examples, wherever they stand; decides their order."""
        return hashlib.sha256(self.copy.to_bytes(4, "little") + self.targets + self.ids.tobytes()).digest()


@dataclass(kw_only=True)
class DataFindings:
    """What happened to the conversations on their way: how often, and the first `NAMED` places of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, where: RawConversation) -> None:
        self.counts[what] += 1
        named = self.places.setdefault(what, [])
        if len(named) < NAMED:
            named.append(where.place)


# Kinds of findings. The first three leave the conversation out.
WITHOUT_TARGET = "has no answer to train on"
TOO_LONG_DROPPED = "is longer than max_seq_len: dropped"
FIRST_ANSWER_TOO_LONG = "its first answer does not fit max_seq_len: dropped"
CUT = "is longer than max_seq_len: its last turns are left out"
ANSWER_BY_ANSWER = "the template changes earlier turns: one example for each answer"
END_ADDED = "the template writes no token that ends the answer: end of sequence added"
OTHER_END = "ends with another token than the tokenizer's end of sequence"
DOUBLED_START = "begins with two start-of-sequence tokens"
JOINED_TOKEN = "a token spans the prompt's end and the answer's beginning: not a target"  # noqa: S105 - no password
LEFT_OUT = (WITHOUT_TARGET, TOO_LONG_DROPPED, FIRST_ANSWER_TOO_LONG)


class _Rendered(NamedTuple):
    """A text, the parts of it that are answers as (first character, character after the last), and its turns."""

    source: RawConversation
    turns: int
    text: str
    answers: tuple[tuple[int, int], ...]


class Examples:
    """Makes examples of conversations with one tokenizer. `findings` says what was dropped, cut or unusual."""

    def __init__(self, tokenizer: Any, *, max_seq_len: int, labels: str = "assistant", too_long: str = "drop") -> None:
        if tokenizer.eos_token_id is None:
            raise InputError("tokenizer_config.json: eos_token: missing; answers could not be ended")
        self.findings = DataFindings()
        self._tokenizer, self._template, self._most = tokenizer, ChatTemplate(tokenizer), max_seq_len
        self._labels, self._too_long = labels, too_long
        self._start, self._end = tokenizer.bos_token_id, tokenizer.eos_token_id  # looked up slowly
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(key for key, token in added.items() if token.special)}

    def of(self, conversations: Iterable[RawConversation]) -> Iterator[Example]:
        """Examples in the conversations' order. Raises InputError where the template refuses one."""
        source = iter(conversations)
        while piece := list(islice(source, AT_ONCE)):
            yield from self._tokenized([one for conversation in piece for one in self._rendered(conversation)])

    def _rendered(self, conversation: RawConversation) -> Iterator[_Rendered]:
        answers = _answers(conversation.turns)
        if not answers:
            self.findings.note(WITHOUT_TARGET, conversation)
            return
        turns, messages = len(conversation.turns), conversation.messages
        if self._labels == "all":
            whole = self._text(conversation, messages)
            yield _Rendered(source=conversation, turns=turns, text=whole, answers=((0, len(whole)),))
            return
        spans = [self._span(conversation, messages[: place + 1]) for place in answers]
        whole = spans[-1][1] if answers[-1] == turns - 1 else self._text(conversation, messages)
        if all(whole.startswith(through) for _, through in spans):
            ends = tuple((start, len(through)) for start, through in spans)
            yield _Rendered(source=conversation, turns=turns, text=whole, answers=ends)
            return
        self.findings.note(ANSWER_BY_ANSWER, conversation)
        for place, (start, through) in zip(answers, spans, strict=True):
            yield _Rendered(source=conversation, turns=place + 1, text=through, answers=((start, len(through)),))

    def _span(self, conversation: RawConversation, messages: Messages) -> tuple[int, str]:
        """(where the last turn of `messages`, an answer, begins in their text, that text)."""
        if len(messages) == 1:
            raise InputError(
                f"{conversation.place}: turn 1: the assistant's, an answer to nothing; remove that turn, or the line"
            )
        before = self._text(conversation, messages[:-1], prompt=True)
        through = self._text(conversation, messages)
        if not through.startswith(before):
            raise InputError(
                f"{conversation.place}: turn {len(messages)}: the model's chat template writes another text before the "
                "answer than it gives the model to answer; use the model's own template, or train.labels: all"
            )
        return len(before), through

    def _text(self, conversation: RawConversation, messages: Messages, *, prompt: bool = False) -> str:
        text = self._template.text(conversation.place, messages, prompt=prompt)
        if not text:
            raise InputError(f"{conversation.place}: the model's chat template renders nothing; check the model folder")
        return text

    def _tokenized(self, texts: Sequence[_Rendered]) -> Iterator[Example]:
        if not texts:
            return
        # The template writes the special tokens itself; adding them again would begin every example twice.
        encoded = self._tokenizer([text.text for text in texts], add_special_tokens=False, **IDS_ALONE)
        for one, ids, encoding in zip(texts, encoded["input_ids"], encoded.encodings, strict=True):
            targets, ends = self._targets(one, ids, encoding)
            if not ends and ids and self._labels == "assistant":
                self.findings.note(END_ADDED, one.source)
                ids, targets = [*ids, self._end], bytearray([*targets, 1])
            if len(ids) > self._most:
                yield from self._shortened(one)
                continue
            if 1 not in targets:
                self.findings.note(WITHOUT_TARGET, one.source)
                continue
            self._look_at(one, ids, targets)
            yield Example(file=one.source.file, line=one.source.line, ids=array("I", ids), targets=bytes(targets))

    def _targets(self, one: _Rendered, ids: list[int], encoding: Any) -> tuple[bytearray, bool]:
        """(1 for each target, whether the last answer has a token that ends it)."""
        targets, ends = bytearray(len(ids)), False
        for first, last in one.answers:
            begin, end = _token_at(encoding, len(ids), first), _token_at(encoding, len(ids), last)
            if begin and encoding.token_to_chars(begin - 1)[1] > first:
                self.findings.note(JOINED_TOKEN, one.source)
            if self._labels == "assistant":
                # What a template writes after the token that ends a turn is not the model's to write.
                special = next((place for place in range(end - 1, begin - 1, -1) if ids[place] in self._special), None)
                ends, end = special is not None, end if special is None else special + 1
            targets[begin:end] = b"\1" * (end - begin)
        targets[:1] = bytes(min(1, len(ids)))
        return targets, ends

    def _shortened(self, one: _Rendered) -> Iterator[Example]:
        """The longest part of a conversation that ends with a whole answer and fits, if it may be cut."""
        source = one.source
        if self._too_long == "drop":
            self.findings.note(TOO_LONG_DROPPED, source)
            return
        answers = _answers(source.turns[: one.turns - 1])
        if len(one.answers) == 1 and one.turns < len(source.turns):
            answers = []  # one of several examples of this conversation: its earlier answers have examples of their own
        for last in reversed(answers):
            shorter = replace(source, turns=source.turns[: last + 1])
            made = list(self._quiet().of([shorter]))
            if made:
                self.findings.note(CUT, source)
                yield from made
                return
        self.findings.note(FIRST_ANSWER_TOO_LONG, source)

    def _quiet(self) -> Examples:
        """The same, with findings of its own."""
        quiet = copy.copy(self)
        quiet.findings, quiet._too_long = DataFindings(), "drop"
        return quiet

    def _look_at(self, one: _Rendered, ids: list[int], targets: bytearray) -> None:
        if self._start is not None and ids[:2] == [self._start, self._start]:
            self.findings.note(DOUBLED_START, one.source)
        last = targets.rindex(1)
        if self._labels == "assistant" and ids[last] != self._end:
            self.findings.note(OTHER_END, one.source)


def _answers(turns: Sequence[tuple[str, str]]) -> list[int]:
    """The places of the assistant's turns that say something."""
    return [place for place, (role, text) in enumerate(turns) if role == "assistant" and text.strip()]


def _token_at(encoding: Any, tokens: int, character: int) -> int:
    """The first token that begins at this character or after it; `tokens` where none does.

    A list of where all of them begin takes as long as the rest of an example.
    """

    def begins(token: int) -> int:
        return int(encoding.token_to_chars(token)[0])

    found = encoding.char_to_token(character)
    near = tokens if found is None else int(found)
    if (near == tokens or begins(near) >= character) and (near == 0 or begins(near - 1) < character):
        return near
    return bisect_left(range(tokens), character, key=begins)
