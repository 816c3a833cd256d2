"""Conversations to training examples: token ids and a target mask.

The model's chat template renders the text. With `labels` "assistant" the targets are the tokens of the assistant's
turns and the token that ends each turn; with "all" every token is a target. The boundaries of a turn are found by
rendering, never by searching for text: the conversation up to the turn, with the template's generation prompt, is the
prompt at inference, and the text that the turn adds to it is the answer to learn.

Some templates render earlier turns differently once later ones follow (Mistral's puts the system's text before the last
question, Qwen's leaves out earlier thoughts). Such a conversation becomes one example for each of its answers, each
rendered as at inference. Rendered as a whole it would teach a text that never occurs at inference.

Some templates write another text before an answer than as a prompt: Mistral-7B-Instruct-v0.3's leaves out the system's
text once its question is answered, DeepSeek-R1's ends the prompt with an open thought. The example is then the prompt
at inference and the text that the template writes for the answer, after a thought that ends.

A conversation over `max_seq_len` tokens is dropped, or cut after the last whole answer that fits. An answer is never
cut inside, so it keeps the token that ends it. If the template writes no such token after the last answer, the
tokenizer's end-of-sequence token is added: without it the model would not learn to end its answers.
"""

from __future__ import annotations

import copy
import hashlib
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from bench.data.inputs import Conversation, InputError
from bench.data.readers import BadLines
from bench.data.tokenizer import ChatTemplate, ControlTokens, Messages, TemplateTimeout

TOKENIZE_BATCH = 256  # conversations that are tokenized together
MAX_LOCATIONS = 20  # locations listed for each kind of finding
IDS_ONLY = {"return_attention_mask": False, "return_token_type_ids": False}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Training example: token `ids`, and in `targets` a byte for each, 1 for a target and 0 otherwise.

    The first id is never a target, as no token before it predicts it. `file` and `line` are its source; `copy` numbers
    the repetitions of a line by its file's weight.
    """

    file: str
    line: int
    ids: array[int]
    targets: bytes
    copy: int = 0

    @property
    def digest(self) -> bytes:
        """Digest of the content, without file and line; decides the order of examples."""
        return hashlib.sha256(self.copy.to_bytes(4, "little") + self.targets + self.ids.tobytes()).digest()


@dataclass(kw_only=True)
class DataFindings:
    """Findings about conversations: the count and the first `MAX_LOCATIONS` locations of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    locations: dict[str, list[str]] = field(default_factory=dict)

    _latest: dict[str, str] = field(default_factory=dict)

    def add_skipped(self, kind: str, bad_lines: BadLines) -> None:
        """Count lines that were left out because they cannot be used, with the reason of each."""
        if bad_lines.count:
            self.counts[kind] += bad_lines.count
            self.locations[kind] = [*self.locations.get(kind, []), *bad_lines.places()][:MAX_LOCATIONS]

    def is_latest(self, kind: str, conversation: Conversation) -> bool:
        """Return whether this conversation was the last one that was counted for the kind."""
        return self._latest.get(kind) == conversation.location

    def add(self, kind: str, conversation: Conversation) -> None:
        """Count a conversation, once for each kind, however many of its answers are concerned."""
        if self.is_latest(kind, conversation):
            return
        self._latest[kind] = conversation.location
        self.counts[kind] += 1
        locations = self.locations.setdefault(kind, [])
        if len(locations) < MAX_LOCATIONS:
            locations.append(conversation.location)


# Kinds of findings. The first four drop the conversation.
SKIPPED = "cannot be used: skipped by train.bad_lines"
NO_TARGET = "has no answer to train on"
TOO_LONG_DROPPED = "is longer than max_seq_len: dropped"
FIRST_ANSWER_TOO_LONG = "its first answer does not fit max_seq_len: dropped"
TOO_LONG_CUT = "is longer than max_seq_len: its last turns are cut"
SPLIT_BY_ANSWER = "the template changes earlier turns: split into one example per answer"
EOS_ADDED = "the template writes no end token after the answer: end of sequence added"
PROMPT_ADDS = "the template leaves text of the prompt out once it is answered: trained after the prompt"
THOUGHT_ADDED = "the prompt ends in an open thought: the answer is trained after an empty one"
THOUGHT_LEFT_OUT = "the template leaves out the thought of an answer: not trained on"
OTHER_PROMPT = "the template writes another text than as a prompt: rendered without the prompt"
OTHER_EOS = "ends with another token than the tokenizer's end of sequence"
DOUBLED_BOS = "begins with two start-of-sequence tokens"
SPANNING_TOKEN = "a token spans the prompt's end and the answer's beginning: not a target"  # noqa: S105 - not a password
TYPED_TOKEN = "has the control token {} in its text: tokenized as text"  # noqa: S105 - not a password
TYPED_TOKEN_KEPT = "has the control token {} in its text: kept as a control token"  # noqa: S105 - not a password
DROPPED_KINDS = (SKIPPED, NO_TARGET, TOO_LONG_DROPPED, FIRST_ANSWER_TOO_LONG)
THOUGHT, THOUGHT_END = "<think>", "</think>"
# What a prompt may add that the template does not write before an answer: space, an open or an empty thought.
PROMPT_ADDITION = re.compile(r"\s*(<think>\s*(</think>\s*)?|<\|channel>thought\s*<channel\|>\s*)?")
PROBE_ANSWER = "\N{FOUR DOT PUNCTUATION}"  # no template's text contains it


class _PromptDiffers(InputError):
    """The template writes another text before an answer than as a prompt, and the answer's text is unknown."""


class _Rendered(NamedTuple):
    """Rendered text of the first `turns` turns, with its answers as (first character, end character).

    `is_split`: it is one of several examples of its conversation. `hides_tokens`: typed control tokens are replaced.
    """

    source: Conversation
    turns: int
    text: str
    answers: tuple[tuple[int, int], ...]
    is_split: bool = False
    hides_tokens: bool = False


class ExampleBuilder:
    """Builder of examples with one tokenizer; without `max_seq_len` none is too long.

    `findings` counts dropped, cut and unusual conversations.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_seq_len: int | None,
        labels: str = "assistant",
        too_long: str = "drop",
        special_tokens: str = "keep",
        on_bad_line: Callable[[InputError], None] | None = None,
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise InputError("tokenizer_config.json: eos_token: missing", remedy="add it, it ends each answer")
        self.findings = DataFindings()
        self._tokenizer, self._template, self._max_seq_len = tokenizer, ChatTemplate(tokenizer), max_seq_len
        self._labels, self._too_long, self._on_bad_line = labels, too_long, on_bad_line
        self._control_tokens, self._keeps_typed_tokens = ControlTokens(tokenizer), special_tokens == "keep"
        self._is_template_checked = False
        self._bos, self._eos = tokenizer.bos_token_id, tokenizer.eos_token_id  # cached: slow properties
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(key for key, token in added.items() if token.special)}

    def build(self, conversations: Iterable[Conversation]) -> Iterator[Example]:
        """Build examples in the conversations' order.

        A conversation that the template rejects raises InputError, or is passed to `on_bad_line` and left out.
        """
        if not self._is_template_checked:
            self._check_template()
        source = iter(conversations)
        while batch := list(islice(source, TOKENIZE_BATCH)):
            texts = [rendered for conversation in batch for rendered in self._render_if_accepted(conversation)]
            yield from self._tokenize(texts)

    def _check_template(self) -> None:
        """Raise InputError for a template that writes no text: it would train on empty answers."""
        self._is_template_checked = True
        turns = [{"role": "user", "content": PROBE_ANSWER}, {"role": "assistant", "content": PROBE_ANSWER}]
        try:
            text = self._template.render("", turns)
        except InputError:  # a template may reject these turns; it is rejected with the first line of the data then
            return
        if text and text.count(PROBE_ANSWER) < len(turns):
            raise InputError(
                "the model's chat template does not write the text of a turn, because it expects a list of text and "
                "images",
                remedy="use a model with a chat template for text",
            )

    def _render_if_accepted(self, conversation: Conversation) -> list[_Rendered]:
        try:
            return list(self._render(conversation))
        except TemplateTimeout:
            raise
        except InputError as error:
            if self._on_bad_line is None:
                raise
            self._on_bad_line(error)
            return []

    def _render(self, conversation: Conversation) -> Iterator[_Rendered]:
        answers = conversation.answers
        if not answers:
            self.findings.add(NO_TARGET, conversation)
            return
        messages = conversation.messages
        typed_tokens = self._control_tokens.find(messages)
        for token in typed_tokens:
            self.findings.add(
                (TYPED_TOKEN_KEPT if self._keeps_typed_tokens else TYPED_TOKEN).format(token), conversation
            )
        if hides_tokens := bool(typed_tokens) and not self._keeps_typed_tokens:
            messages = self._control_tokens.hide(conversation.location, messages)
        for rendered in self._render_messages(conversation, messages, answers):
            yield rendered._replace(hides_tokens=hides_tokens)

    def _render_messages(
        self, conversation: Conversation, messages: Messages, answers: Sequence[int]
    ) -> Iterator[_Rendered]:
        turns = len(messages)
        if self._labels == "all":
            whole = self._whole_text(conversation, messages)
            if conversation.untrained:
                raise InputError(
                    f"{conversation.location}: turn {conversation.untrained[0] + 1}: excluded by its weight, train or "
                    "loss, but every token is trained on",
                    remedy="set train.label_mask: assistant, or remove the key",
                )
            yield _Rendered(source=conversation, turns=turns, text=whole, answers=((0, len(whole)),))
            return
        spans = [self._answer_span(conversation, messages[: turn + 1]) for turn in answers]
        whole = spans[-1][1] if answers[-1] == turns - 1 else self._render_text(conversation, messages)
        if all(whole.startswith(text) for _, text in spans):
            ends = tuple((start, len(text)) for start, text in spans)
            yield _Rendered(source=conversation, turns=turns, text=whole, answers=ends)
            return
        is_split = len(answers) > 1
        if is_split:
            self.findings.add(SPLIT_BY_ANSWER, conversation)
        for turn, (start, text) in zip(answers, spans, strict=True):
            yield _Rendered(
                source=conversation, turns=turn + 1, text=text, answers=((start, len(text)),), is_split=is_split
            )

    def _whole_text(self, conversation: Conversation, messages: Messages) -> str:
        """Render a conversation of which every token is a target, after its last answer's prompt if it has one."""
        if len(messages) > 1 and messages[-1]["role"] == "assistant":
            try:
                return self._answer_span(conversation, messages)[1]
            except _PromptDiffers:
                self.findings.add(OTHER_PROMPT, conversation)
        return self._render_text(conversation, messages)

    def _answer_span(self, conversation: Conversation, messages: Messages) -> tuple[int, str]:
        """Render `messages`, whose last turn is an answer; return (start of that answer in the text, text)."""
        if len(messages) == 1:
            raise InputError(
                f"{conversation.location}: turn 1: an assistant's turn without a question",
                remedy="remove the turn or the line",
            )
        prompt_text = self._render_text(conversation, messages[:-1], prompt=True)
        text = self._render_text(conversation, messages)
        if not text.startswith(prompt_text):
            text = prompt_text + self._text_after_prompt(conversation, messages, text)
        if THOUGHT_END in messages[-1]["content"] and THOUGHT_END not in text[len(prompt_text) :]:
            self.findings.add(THOUGHT_LEFT_OUT, conversation)
        return len(prompt_text), text

    def _text_after_prompt(self, conversation: Conversation, messages: Messages, text: str) -> str:
        """Return the text of the last answer, where the template's `text` of the conversation differs from the prompt.

        The answer is rendered after its prompt in the conversation, in the conversation without the system's turn, or
        after its question only. `text` must end with it. Raises _PromptDiffers.
        """
        last_turns = [messages, messages[1:]] if messages[0]["role"] == "system" else [messages]
        for turns in (*last_turns, messages[-2:]):
            if turns[0]["role"] == "assistant":
                continue
            rendered = self._render_answer(conversation, turns)
            if rendered is not None and text.endswith(rendered[1]):
                self.findings.add(PROMPT_ADDS, conversation)
                open_thought, answer = rendered
                if open_thought:
                    return self._end_thought(conversation, messages[-1]["content"], open_thought, answer)
                return answer
        raise _PromptDiffers(
            f"{conversation.location}: turn {len(messages)}: the model's chat template renders another text before "
            "the answer than as a prompt; use the model's own template, or set train.label_mask: all"
        )

    def _render_answer(self, conversation: Conversation, messages: Messages) -> tuple[str, str] | None:
        """Return (the open thought of the prompt that the template leaves out, text of the last answer).

        None if the template writes the turns differently in another way, or rejects them.
        """
        try:
            prompt_text = self._template.render(conversation.location, messages[:-1], prompt=True)
            text = self._template.render(conversation.location, messages)
            if text.startswith(prompt_text):
                return "", text[len(prompt_text) :]
            probe = [*messages[:-1], {**messages[-1], "content": PROBE_ANSWER}]
            probe_text = self._template.render(conversation.location, probe)
        except TemplateTimeout:
            raise
        except InputError:  # these turns are not in the data: the template may reject them
            return None
        pairs = enumerate(zip(prompt_text, probe_text, strict=False))
        common = next(
            (index for index, (left, right) in pairs if left != right), min(len(prompt_text), len(probe_text))
        )
        addition, probe_answer = prompt_text[common:], probe_text[common:].lstrip()
        is_known = PROMPT_ADDITION.fullmatch(addition) and probe_answer.startswith((PROBE_ANSWER, THOUGHT_END))
        if not is_known or not text.startswith(prompt_text[:common]):
            return None
        is_open = addition.rstrip().endswith(THOUGHT) and probe_answer.startswith(PROBE_ANSWER)
        return addition if is_open else "", text[common:]

    def _end_thought(self, conversation: Conversation, content: str, open_thought: str, answer: str) -> str:
        """Return the text after a prompt that ends in `open_thought`: the thought, its end and the answer."""
        if THOUGHT_END in answer:
            return answer.lstrip().removeprefix(THOUGHT)
        thought, end, rest = content.rpartition(THOUGHT_END)
        if not end:
            self.findings.add(THOUGHT_ADDED, conversation)
            return f"\n{THOUGHT_END}\n\n{answer}"
        thought = thought.lstrip().removeprefix(THOUGHT).removeprefix(open_thought.lstrip().removeprefix(THOUGHT))
        space = rest[: len(rest) - len(rest.lstrip())]  # some templates strip it
        return f"{thought}{THOUGHT_END}{'' if answer.startswith(space) else space}{answer}"

    def _render_text(self, conversation: Conversation, messages: Messages, *, prompt: bool = False) -> str:
        text = self._template.render(conversation.location, messages, prompt=prompt)
        if not text:
            raise InputError(
                f"{conversation.location}: the model's chat template renders an empty text",
                remedy="check the model folder",
            )
        return text

    def _tokenize(self, texts: Sequence[_Rendered]) -> Iterator[Example]:
        if not texts:
            return
        # The template writes the special tokens itself; adding them again would double the start of every example.
        for rendered, (ids, encoding) in zip(texts, self._encode(texts), strict=True):
            targets, has_end = self._mark_targets(rendered, ids, encoding)
            if not has_end and ids and self._labels == "assistant":
                self.findings.add(EOS_ADDED, rendered.source)
                ids, targets = [*ids, self._eos], bytearray([*targets, 1])
            if self._max_seq_len is not None and len(ids) > self._max_seq_len:
                yield from self._cut(rendered)
                continue
            if 1 not in targets:
                self.findings.add(NO_TARGET, rendered.source)
                continue
            self._check_special_tokens(rendered, ids, targets)
            source = rendered.source
            yield Example(file=source.file, line=source.line, ids=array("I", ids), targets=bytes(targets))

    def _encode(self, texts: Sequence[_Rendered]) -> Iterator[tuple[list[int], Any]]:
        """Tokenize texts; return token ids and encoding of each."""
        as_written = [text.text for text in texts if not text.hides_tokens]
        hiding = [text.text for text in texts if text.hides_tokens]
        encoded = self._tokenizer(as_written, add_special_tokens=False, **IDS_ONLY) if as_written else None
        pairs = iter(zip(encoded["input_ids"], encoded.encodings, strict=True) if encoded is not None else ())
        hiding_pairs = iter(self._control_tokens.encode(hiding) if hiding else ())
        return (next(hiding_pairs if text.hides_tokens else pairs) for text in texts)

    def _mark_targets(self, rendered: _Rendered, ids: list[int], encoding: Any) -> tuple[bytearray, bool]:
        """Return (target mask, whether the last answer has an end token)."""
        targets, has_end = bytearray(len(ids)), False
        for first, last in rendered.answers:
            begin, end = _token_at(encoding, len(ids), first), _token_at(encoding, len(ids), last)
            if begin and encoding.token_to_chars(begin - 1)[1] > first:
                self.findings.add(SPANNING_TOKEN, rendered.source)
            if self._labels == "assistant":
                # The text after the token that ends a turn belongs to the template, not to the answer.
                special = next((index for index in range(end - 1, begin - 1, -1) if ids[index] in self._special), None)
                has_end, end = special is not None, end if special is None else special + 1
            targets[begin:end] = b"\1" * (end - begin)
        targets[:1] = bytes(min(1, len(ids)))
        return targets, has_end

    def _cut(self, rendered: _Rendered) -> Iterator[Example]:
        """Cut a conversation after the last whole answer that fits, if it may be cut."""
        source, dropped = rendered.source, TOO_LONG_DROPPED if self._too_long == "drop" else FIRST_ANSWER_TOO_LONG
        earlier = [turn for turn in source.answers if turn < rendered.turns - 1]
        if rendered.is_split:  # earlier answers have examples of their own, unless the first is already too long
            if not earlier:
                self.findings.add(dropped, source)
            elif not self.findings.is_latest(dropped, source):
                self.findings.add(TOO_LONG_CUT, source)
            return
        for last in reversed(earlier if self._too_long == "cut" else ()):
            shorter = replace(source, turns=source.turns[: last + 1])
            examples = list(self._without_findings().build([shorter]))
            if examples:
                self.findings.add(TOO_LONG_CUT, source)
                yield from examples
                return
        self.findings.add(dropped, source)

    def _without_findings(self) -> ExampleBuilder:
        """Copy this builder, with separate findings, and dropping long conversations."""
        builder = copy.copy(self)
        builder.findings, builder._too_long = DataFindings(), "drop"
        return builder

    def _check_special_tokens(self, rendered: _Rendered, ids: list[int], targets: bytearray) -> None:
        if self._bos is not None and ids[:2] == [self._bos, self._bos]:
            self.findings.add(DOUBLED_BOS, rendered.source)
        last = targets.rindex(1)
        if self._labels == "assistant" and ids[last] != self._eos:
            self.findings.add(OTHER_EOS, rendered.source)


def encode_prompt(
    tokenizer: Any, location: str, messages: Messages, special_tokens: str, log: Callable[[str], object]
) -> list[int]:
    """Render a conversation as the prompt of its next answer and tokenize it like the examples. Raises InputError.

    Control tokens that are typed in its last turn are logged.
    """
    control_tokens, template = ControlTokens(tokenizer), ChatTemplate(tokenizer)
    kind = TYPED_TOKEN_KEPT if special_tokens == "keep" else TYPED_TOKEN
    for token in control_tokens.find(messages[-1:]):
        log(f"{location} {kind.format(token)}")
    if special_tokens == "keep" or not control_tokens.find(messages):
        text = template.render(location, messages, prompt=True)
        return list(tokenizer(text, add_special_tokens=False, **IDS_ONLY)["input_ids"])
    text = template.render(location, control_tokens.hide(location, messages), prompt=True)
    return control_tokens.encode([text])[0][0]


def _token_at(encoding: Any, tokens: int, character: int) -> int:
    """Find the first token that begins at or after this character; return `tokens` if no token does.

    Listing the offsets of all tokens would take as long as the rest of an example.
    """

    def begins(token: int) -> int:
        return int(encoding.token_to_chars(token)[0])

    hit = encoding.char_to_token(character)
    guess = tokens if hit is None else int(hit)
    if (guess == tokens or begins(guess) >= character) and (guess == 0 or begins(guess - 1) < character):
        return guess
    return bisect_left(range(tokens), character, key=begins)
