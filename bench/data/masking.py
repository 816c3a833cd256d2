"""Conversations to training examples: token ids and a target mask.

The model's chat template renders the text (`bench.data.rendering`). With `labels` "assistant" the targets are the
tokens of the assistant's turns, its tool calls included, and the token that ends each turn; with "all" every token is a
target.

A conversation over `max_seq_len` tokens is dropped, or cut after the last whole answer that fits. An answer is never
cut inside, so it keeps the token that ends it. If the template writes no such token after the last answer, the
tokenizer's end-of-sequence token is added: without it the model would not learn to end its answers.

Plain text gets the tokenizer's own start and its end-of-sequence token, and no template. Every token is a target. A
text over `max_seq_len` is dropped, or divided into pieces.
"""

from __future__ import annotations

import copy
import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.data import findings
from bench.data.findings import DataFindings
from bench.data.inputs import Conversation, InputError
from bench.data.rendering import PROBE_ANSWER, ConversationRenderer, Rendered
from bench.data.tokenizer import ChatTemplate, ControlTokens, Messages, TemplateFault
from bench.data.tool_template import ToolTemplate
from bench.records.training import DataOptions

TOKENIZE_BATCH = 256  # conversations that are tokenized together
MAX_BATCH_CHARS = 32 << 20  # or fewer, if their texts are long
TEMPLATE_REMEDY = "use a model with a chat template for text, or set train.chat_template for a training"
T = TypeVar("T")
IDS_ONLY = {"return_attention_mask": False, "return_token_type_ids": False}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Training example: token `ids`, and in `targets` a byte for each, 1 for a target and 0 otherwise.

    The first id is never a target, as no token before it predicts it. `file` and `line` are its conversation's.
    """

    file: str
    line: str
    ids: array[int]
    targets: bytes

    @property
    def location(self) -> str:
        return f"{self.file}: {self.line}"

    @property
    def digest(self) -> bytes:
        """Digest of the content, without file and line; decides the order of examples."""
        return hashlib.sha256(self.targets + self.ids.tobytes()).digest()


class ExampleBuilder:
    """Builder of examples with one tokenizer; without `max_seq_len` none is too long.

    `findings` counts dropped, cut and unusual conversations.
    """

    def __init__(
        self,
        tokenizer: Any,
        options: DataOptions,
        *,
        max_seq_len: int | None,
        too_long: str = "drop",
        on_bad_line: Callable[[InputError], None] | None = None,
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise InputError("tokenizer_config.json: eos_token: missing", remedy="add it, it ends each answer")
        self.findings = DataFindings()
        self._tokenizer, self._template, self._max_seq_len = tokenizer, ChatTemplate(tokenizer), max_seq_len
        self._labels, self._too_long, self._on_bad_line = options.labels, too_long, on_bad_line
        self._tool_template, self._system = ToolTemplate(self._template), options.system
        self._control_tokens, self._keeps_typed_tokens = ControlTokens(tokenizer), options.special_tokens == "keep"
        self._is_template_checked = False
        self._turn_ends: frozenset[int] = getattr(tokenizer, "turn_ends", frozenset())
        self._bos, self._eos = tokenizer.bos_token_id, tokenizer.eos_token_id  # cached: slow properties
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(key for key, token in added.items() if token.special)}

    def build(self, conversations: Iterable[Conversation]) -> Iterator[Example]:
        """Build examples in the conversations' order.

        A conversation that the template rejects raises InputError, or is passed to `on_bad_line` and left out.
        """
        texts, characters = list[Rendered](), 0
        for number, conversation in enumerate(conversations, 1):
            rendered = self._render_if_accepted(conversation)
            texts += rendered
            characters += sum(len(each.text) for each in rendered)
            if number % TOKENIZE_BATCH == 0 or characters > MAX_BATCH_CHARS:
                yield from self._tokenize(texts)
                texts, characters = [], 0
        yield from self._tokenize(texts)

    def _check_template(self) -> None:
        """Raise TemplateFault for a template that fails, or writes no text: it would train on empty answers."""
        self._is_template_checked = True
        turns = [{"role": "user", "content": PROBE_ANSWER}, {"role": "assistant", "content": PROBE_ANSWER}]
        subject = f"the chat template (of {self._tokenizer.name_or_path}, or train.chat_template)"
        try:
            text = self._template.render("", turns)
        except InputError as error:
            cause = error.__cause__
            if type(cause).__name__ == "TemplateError":  # it refuses these turns; the first line of the data may differ
                return
            why = " ".join(str(cause).split())
            raise TemplateFault(f"{subject} fails: {why}", remedy=TEMPLATE_REMEDY) from error
        if text.count(PROBE_ANSWER) < len(turns):
            raise TemplateFault(
                f"{subject} does not write the text of a turn; it may expect a list of text and images",
                remedy=TEMPLATE_REMEDY,
            )

    def _render_if_accepted(self, conversation: Conversation) -> list[Rendered]:
        try:
            return list(self._render(conversation))
        except TemplateFault:
            raise
        except InputError as error:
            if self._on_bad_line is None:
                raise
            self._on_bad_line(error)
            return []

    def _render(self, conversation: Conversation) -> Iterator[Rendered]:
        self._count_untrained(conversation)
        source = conversation.with_system(self._system)
        if not source.answers:
            self.findings.add(findings.NO_TARGET, source)
        elif source.is_text:
            yield self._render_text(source)
        else:
            yield from self._render_answers(source)

    def _count_untrained(self, source: Conversation) -> None:
        """Count answers that are context only in a conversation that has others."""
        roles = [role for role, _ in source.turns]
        if source.answers and roles[0] == "assistant" and len(roles) > 1:
            self.findings.add(findings.BEGINS_WITH_ANSWER, source)
        if source.answers and any(role == "assistant" and source.is_blank(index) for index, role in enumerate(roles)):
            self.findings.add(findings.BLANK_ANSWER, source)

    def _render_answers(self, source: Conversation) -> Iterator[Rendered]:
        if not self._is_template_checked:
            self._check_template()
        messages, is_text_lost = self._tool_template.messages(source)
        if is_text_lost:
            self.findings.add(findings.CALL_TEXT_LEFT_OUT, source)
        (messages, tools), hides_tokens = self._hide_typed_tokens(source, (messages, source.tools))
        renderer = ConversationRenderer(
            source=source, messages=messages, tools=tools, template=self._template, findings=self.findings
        )
        for rendered in renderer.render(self._labels, source.answers):
            yield rendered._replace(hides_tokens=hides_tokens)

    def _render_text(self, source: Conversation) -> Rendered:
        """Return a plain text between the tokenizer's start and end tokens."""
        if self._labels != "all":
            raise InputError(
                f"{source.location}: text: plain text has no answers to train on",
                remedy="set train.label_mask: all, which trains on every token",
            )
        text, hides_tokens = self._hide_typed_tokens(source, source.turns[0][1])
        starts = self._tokenizer("")["input_ids"][:1] == [self._bos]
        whole = f"{self._tokenizer.bos_token if starts else ''}{text}{self._tokenizer.eos_token}"
        return Rendered(source=source, turns=1, text=whole, answers=((0, len(whole)),), hides_tokens=hides_tokens)

    def _hide_typed_tokens(self, source: Conversation, value: T) -> tuple[T, bool]:
        """Count control tokens typed in the texts of `value`; return it with them hidden, and whether it has any."""
        has_only_turns = not (source.tools or source.additions)
        typed_tokens = self._control_tokens.find([text for _, text in source.turns] if has_only_turns else value)
        kind = findings.TYPED_TOKEN_KEPT if self._keeps_typed_tokens else findings.TYPED_TOKEN
        for token in typed_tokens:
            self.findings.add(kind.format(token), source)
        if not typed_tokens or self._keeps_typed_tokens:
            return value, False
        return self._control_tokens.hide(source.location, value), True

    def _tokenize(self, texts: Sequence[Rendered]) -> Iterator[Example]:
        if not texts:
            return
        # The template writes the special tokens itself; adding them again would double the start of every example.
        for rendered, (ids, encoding) in zip(texts, self._encode(texts), strict=True):
            targets, has_end = self._mark_targets(rendered, ids, encoding)
            if not has_end and ids and self._labels == "assistant":
                self.findings.add(findings.EOS_ADDED, rendered.source)
                last = targets.rfind(1) + 1 or len(ids)  # turns after the last answer are left out
                ids, targets = [*ids[:last], self._eos], targets[:last] + b"\1"
            if self._max_seq_len is not None and len(ids) > self._max_seq_len:
                if rendered.source.is_text and self._too_long == "cut":
                    yield from self._divide(rendered.source, ids, self._max_seq_len)
                    continue
                cut = list(self._cut(rendered))
                self.findings.add_long(len(ids), sum(len(example.ids) for example in cut))
                yield from cut
                continue
            if 1 not in targets:
                self.findings.add(findings.NO_TARGET, rendered.source)
                continue
            self._check_special_tokens(rendered, ids, targets)
            yield _example(rendered.source, ids, targets)

    def _encode(self, texts: Sequence[Rendered]) -> Iterator[tuple[list[int], Any]]:
        """Tokenize texts; return token ids and encoding of each."""
        as_written = [text.text for text in texts if not text.hides_tokens]
        hiding = [text.text for text in texts if text.hides_tokens]
        encoded = self._tokenizer(as_written, add_special_tokens=False, **IDS_ONLY) if as_written else None
        pairs = iter(zip(encoded["input_ids"], encoded.encodings, strict=True) if encoded is not None else ())
        hiding_pairs = iter(self._control_tokens.encode(hiding) if hiding else ())
        return (next(hiding_pairs if text.hides_tokens else pairs) for text in texts)

    def _mark_targets(self, rendered: Rendered, ids: list[int], encoding: Any) -> tuple[bytearray, bool]:
        """Return (target mask, whether the last answer has an end token)."""
        targets, has_end = bytearray(len(ids)), False
        for first, last in rendered.answers:
            begin, end = _token_at(encoding, len(ids), first), _token_at(encoding, len(ids), last)
            if begin and encoding.token_to_chars(begin - 1)[1] > first:
                self.findings.add(findings.SPANNING_TOKEN, rendered.source)
            if self._labels == "assistant":
                last_token = self._end_token(rendered, ids, encoding, range(begin, end))
                has_end, end = last_token is not None, end if last_token is None else last_token + 1
            targets[begin:end] = b"\1" * (end - begin)
        targets[:1] = bytes(min(1, len(ids)))
        return targets, has_end

    def _end_token(self, rendered: Rendered, ids: list[int], encoding: Any, answer: range) -> int | None:
        """Return the position of the token that ends an answer; the space after it belongs to the template.

        It is the answer's last control token, unless text follows: that one is typed. GLM's template writes none of
        those at which the model ends an answer: there the one that begins the next turn counts, as at inference.
        """
        end = answer.stop
        last = next((index for index in reversed(answer) if ids[index] in self._special), None)
        if last is not None and last + 1 < end:
            characters = slice(encoding.token_to_chars(last)[1], encoding.token_to_chars(end - 1)[1])
            last = None if rendered.text[characters].strip() else last
        ends_by_itself = last is not None and ids[last] in self._turn_ends
        return end if not ends_by_itself and end < len(ids) and ids[end] in self._turn_ends else last

    def _divide(self, source: Conversation, ids: list[int], length: int) -> Iterator[Example]:
        """Divide a plain text into pieces of so many tokens; the last one may be shorter."""
        self.findings.add(findings.TEXT_DIVIDED, source)
        for start in range(0, len(ids) - 1, length):  # without a last piece of one token, which has no target
            piece = ids[start : start + length]
            yield _example(source, piece, b"\0" + b"\1" * (len(piece) - 1))

    def _cut(self, rendered: Rendered) -> Iterator[Example]:
        """Cut a conversation after the last whole answer that fits, if it may be cut."""
        source = rendered.source
        dropped = findings.TOO_LONG_DROPPED if self._too_long == "drop" else findings.FIRST_ANSWER_TOO_LONG
        earlier = [turn for turn in source.answers if turn < rendered.turns - 1]
        if rendered.is_split:  # earlier answers have examples of their own, unless the first is already too long
            if not earlier:
                self.findings.add(dropped, source)
            elif not self.findings.is_latest(dropped, source):
                self.findings.add(findings.TOO_LONG_CUT, source)
            return
        built = dict[int, list[Example]]()

        def is_too_long(turn: int) -> bool:
            built[turn] = list(self._without_findings().build([source.first_turns(turn + 1)]))
            return not built[turn]

        fitting = bisect_left(earlier, True, key=is_too_long) if self._too_long == "cut" else 0
        self.findings.add(findings.TOO_LONG_CUT if fitting else dropped, source)
        yield from built[earlier[fitting - 1]] if fitting else ()

    def _without_findings(self) -> ExampleBuilder:
        """Copy this builder, with separate findings, and dropping long conversations."""
        builder = copy.copy(self)
        builder.findings, builder._too_long = DataFindings(), "drop"
        return builder

    def _check_special_tokens(self, rendered: Rendered, ids: list[int], targets: bytearray) -> None:
        if self._bos is not None and ids[:2] == [self._bos, self._bos]:
            self.findings.add(findings.DOUBLED_BOS, rendered.source)
        last = targets.rindex(1)
        if self._labels == "assistant" and ids[last] != self._eos:
            self.findings.add(findings.OTHER_EOS, rendered.source)


def _example(source: Conversation, ids: list[int], targets: bytes | bytearray) -> Example:
    return Example(file=source.file, line=source.line, ids=array("I", ids), targets=bytes(targets))


def encode_prompt(
    tokenizer: Any, location: str, messages: Messages, special_tokens: str, log: Callable[[str], object]
) -> list[int]:
    """Render a conversation as the prompt of its next answer and tokenize it like the examples. Raises InputError.

    Control tokens that are typed in its last turn are logged.
    """
    control_tokens, template = ControlTokens(tokenizer), ChatTemplate(tokenizer)
    kind = findings.TYPED_TOKEN_KEPT if special_tokens == "keep" else findings.TYPED_TOKEN
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
