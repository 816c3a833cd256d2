"""Rendered text of a conversation with its answers, by the model's chat template.

The boundaries of a turn are found by rendering, never by searching for text: the conversation up to the turn, with the
template's generation prompt, is the prompt at inference, and the text that the turn adds to it is the answer to learn.

Some templates render earlier turns differently once later ones follow (Mistral's puts the system's text before the last
question, Qwen's leaves out earlier thoughts). Such a conversation becomes one example for each of its answers, each
rendered as at inference. Rendered as a whole it would teach a text that never occurs at inference.

Some templates write another text before an answer than as a prompt: Mistral-7B-Instruct-v0.3's leaves out the system's
text once its question is answered, DeepSeek-R1's ends the prompt with an open thought. The example is then the prompt
at inference and the text that the template writes for the answer, after a thought that ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.data import findings
from bench.data.findings import DataFindings
from bench.data.formats import THOUGHT_NAMES
from bench.data.inputs import Conversation, InputError
from bench.data.tokenizer import ChatTemplate, Messages

THOUGHT, THOUGHT_END = "<think>", "</think>"
# What a prompt may add that the template does not write before an answer: space, an open or an empty thought.
PROMPT_ADDITION = re.compile(r"\s*(<think>\s*(</think>\s*)?|<\|channel>thought\s*<channel\|>\s*)?")
MAX_SPLIT_CHARS = 256 << 20  # texts of one conversation, which are held at once
PROBE_ANSWER = "\N{FOUR DOT PUNCTUATION}"  # no template's text contains it


class PromptDiffers(InputError):
    """The template writes another text before an answer than as a prompt, and the answer's text is unknown."""


class Rendered(NamedTuple):
    """Rendered text of the first `turns` turns, with its answers as (first character, end character).

    `is_split`: it is one of several examples of its conversation. `hides_tokens`: typed control tokens are replaced.
    """

    source: Conversation
    turns: int
    text: str
    answers: tuple[tuple[int, int], ...]
    is_split: bool = False
    hides_tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class ConversationRenderer:
    """Renderer of one conversation: of its messages and tools as the template is given them."""

    source: Conversation
    messages: Messages
    tools: Sequence[dict[str, Any]]
    template: ChatTemplate
    findings: DataFindings

    def render(self, labels: str, answers: Sequence[int]) -> Iterator[Rendered]:
        """Render the conversation with these turns as its answers. Raises InputError."""
        messages, turns = self.messages, len(self.messages)
        if labels == "all":
            whole = self._whole_text(messages)
            if self.source.untrained:
                raise InputError(
                    f"{self.source.location}: turn {self.source.untrained[0] + 1}: excluded by its weight, train or "
                    "loss, but every token is trained on",
                    remedy="set train.label_mask: assistant, or remove the key",
                )
            yield Rendered(source=self.source, turns=turns, text=whole, answers=((0, len(whole)),))
            return
        ends, whole = list[tuple[int, int]](), ""
        known = dict[int, tuple[int, str]]()  # the last texts only: all of a long conversation fill the memory
        for turn in answers:
            start, text = span = self._answer_span(messages[: turn + 1])
            if not text.startswith(whole):
                known[turn] = span
                break
            known, whole = {turn: span}, text
            ends.append((start, len(text)))
        else:
            text = whole if answers[-1] == turns - 1 else self._text(messages)
            if text.startswith(whole):
                yield Rendered(source=self.source, turns=turns, text=text, answers=tuple(ends))
                return
        yield from self._split(answers, known)

    def _split(self, answers: Sequence[int], known: Mapping[int, tuple[int, str]]) -> Iterator[Rendered]:
        """Render each answer as an example of its own; `known` has the start and text of some."""
        is_split, characters = len(answers) > 1, 0
        for turn in answers:
            start, text = known.get(turn) or self._answer_span(self.messages[: turn + 1])
            characters += len(text)
            if characters > MAX_SPLIT_CHARS:
                raise InputError(
                    f"{self.source.location}: more than {MAX_SPLIT_CHARS:,} characters as one example for each answer",
                    remedy="divide the conversation",
                )
            yield Rendered(
                source=self.source, turns=turn + 1, text=text, answers=((start, len(text)),), is_split=is_split
            )
        if is_split:
            self.findings.add(findings.SPLIT_BY_ANSWER, self.source)

    def _whole_text(self, messages: Messages) -> str:
        """Render a conversation of which every token is a target, after its last answer's prompt if it has one."""
        if len(messages) > 1 and messages[-1]["role"] == "assistant":
            try:
                return self._answer_span(messages)[1]
            except PromptDiffers:
                self.findings.add(findings.OTHER_PROMPT, self.source)
        return self._text(messages)

    def _answer_span(self, messages: Messages) -> tuple[int, str]:
        """Render `messages`, whose last turn is an answer; return (start of that answer in the text, text)."""
        if len(messages) == 1:
            raise InputError(
                f"{self.source.location}: turn 1: an assistant's turn without a question",
                remedy="remove the turn or the line",
            )
        prompt_text = self._text(messages[:-1], prompt=True)
        text = self._text(messages)
        if not text.startswith(prompt_text):
            text = prompt_text + self._text_after_prompt(messages, prompt_text, text)
        self._check_thought(messages, text[len(prompt_text) :])
        return len(prompt_text), text

    def _check_thought(self, messages: Messages, answer: str) -> None:
        """Count a thought in the content that the template does not take for one. Raises InputError for a lost one."""
        content, thought = messages[-1]["content"] or "", messages[-1].get(THOUGHT_NAMES[0], "")
        if thought.strip() not in answer:
            raise InputError(
                f"{self.source.location}: turn {len(messages)}: {THOUGHT_NAMES[0]}: the model's chat template does not "
                "write it",
                remedy="write the thought into the content, as <think>...</think>, or set train.chat_template",
            )
        if (written := content.count(THOUGHT_END)) and THOUGHT_END not in answer:
            self.findings.add(findings.THOUGHT_LEFT_OUT, self.source)
        elif written and (answer.count(THOUGHT_END) > written or not self.template.writes_think):
            self.findings.add(findings.THOUGHT_IN_TEXT, self.source)

    def _text_after_prompt(self, messages: Messages, prompt_text: str, text: str) -> str:
        """Return the text of the last answer, where the template's `text` of the conversation differs from the prompt.

        The answer is rendered after its prompt in the conversation, in the conversation without the system's turn, or
        after its question only. `text` must end with it. Raises PromptDiffers.
        """
        others = [messages[1:], messages[-2:]] if messages[0]["role"] == "system" else [messages[-2:]]
        for turns, texts in ((messages, (prompt_text, text)), *((turns, None) for turns in others)):
            if turns[0]["role"] in ("assistant", "tool"):
                continue
            rendered = self._render_answer(turns, texts)
            if rendered is not None and text.endswith(rendered[1]):
                self.findings.add(findings.PROMPT_ADDS, self.source)
                open_thought, answer = rendered
                if open_thought:
                    return self._end_thought(messages[-1]["content"] or "", open_thought, answer)
                return answer
        raise PromptDiffers(
            f"{self.source.location}: turn {len(messages)}: the model's chat template renders another text before "
            "the answer than as a prompt; use the model's own template, or set train.label_mask: all"
        )

    def _render_answer(self, messages: Messages, texts: tuple[str, str] | None) -> tuple[str, str] | None:
        """Return (the open thought of the prompt that the template leaves out, text of the last answer).

        None if the template writes the turns differently in another way, or rejects them. `texts` are prompt and
        conversation, if they are rendered already.
        """
        probe = [*messages[:-1], {"role": "assistant", "content": PROBE_ANSWER}]
        try:
            prompt_text, text = texts or (self._render(messages[:-1], prompt=True), self._render(messages))
            if text.startswith(prompt_text):
                return "", text[len(prompt_text) :]
            probe_text = self._render(probe)
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

    def _end_thought(self, content: str, open_thought: str, answer: str) -> str:
        """Return the text after a prompt that ends in `open_thought`: the thought, its end and the answer."""
        if THOUGHT_END in answer:
            return answer.lstrip().removeprefix(THOUGHT)
        thought, end, rest = content.rpartition(THOUGHT_END)
        if not end:
            self.findings.add(findings.THOUGHT_ADDED, self.source)
            return f"\n{THOUGHT_END}\n\n{answer}"
        thought = thought.lstrip().removeprefix(THOUGHT).removeprefix(open_thought.lstrip().removeprefix(THOUGHT))
        space = rest[: len(rest) - len(rest.lstrip())]  # some templates strip it
        return f"{thought}{THOUGHT_END}{'' if answer.startswith(space) else space}{answer}"

    def _render(self, messages: Messages, *, prompt: bool = False) -> str:
        return self.template.render(self.source.location, messages, prompt=prompt, tools=self.tools)

    def _text(self, messages: Messages, *, prompt: bool = False) -> str:
        text = self._render(messages, prompt=prompt)
        if any(each["role"] == "developer" and each["content"].strip() not in text for each in messages):
            raise InputError(
                f"{self.source.location}: role developer: the model's chat template does not write it",
                remedy="write it as role system, or set train.chat_template",
            )
        if not text:
            raise InputError(
                f"{self.source.location}: the model's chat template renders an empty text",
                remedy="check the model folder",
            )
        return text
