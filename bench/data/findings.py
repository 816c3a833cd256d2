"""Findings about conversations: what was dropped, cut, added or unusual, counted by kind. Only the standard library."""

from array import array
from collections import Counter
from itertools import accumulate, count

from bench.data.inputs import Conversation
from bench.records.training import LostToLength

MAX_LOCATIONS = 20  # locations listed for each kind of finding
MAX_LOST_SHARE = 0.01  # what a proposed max_seq_len may lose, both in rows and in tokens

# Kinds of findings. The first three drop the conversation.
NO_TARGET = "has no answer to train on"
TOO_LONG_DROPPED = "is longer than max_seq_len: dropped"
FIRST_ANSWER_TOO_LONG = "its first answer does not fit max_seq_len: dropped"
TOO_LONG_CUT = "is longer than max_seq_len: its last turns are cut"
TEXT_DIVIDED = "is longer than max_seq_len: divided into pieces of that length"
SPLIT_BY_ANSWER = "the template changes earlier turns: split into one example per answer"
EOS_ADDED = "the template writes no end token after the answer: end of sequence added"
PROMPT_ADDS = "the template leaves text of the prompt out once it is answered: trained after the prompt"
THOUGHT_ADDED = "the prompt ends in an open thought: the answer is trained after an empty one"
THOUGHT_IN_TEXT = "has <think> in an answer, but the template writes thoughts in another form: use reasoning_content"
BLANK_ANSWER = "has a blank answer inside: context only"
BEGINS_WITH_ANSWER = "begins with the assistant: that turn is context only"
THOUGHT_LEFT_OUT = "the template leaves out the thought of an answer: not trained on"
CALL_TEXT_LEFT_OUT = "the template leaves out the text of a turn with tool calls: not trained on"
OTHER_PROMPT = "the template writes another text than as a prompt: rendered without the prompt"
OTHER_EOS = "ends with another token than the tokenizer's end of sequence"
DOUBLED_BOS = "begins with two start-of-sequence tokens"
SPANNING_TOKEN = "a token spans the prompt's end and the answer's beginning: not a target"  # noqa: S105 - not a password
TYPED_TOKEN = "has the control token {} in its text: tokenized as text"  # noqa: S105 - not a password
TYPED_TOKEN_KEPT = "has the control token {} in its text: kept as a control token"  # noqa: S105 - not a password
DROPPED_KINDS = (NO_TARGET, TOO_LONG_DROPPED, FIRST_ANSWER_TOO_LONG)


class DataFindings:
    """Findings about conversations: the count and the first `MAX_LOCATIONS` locations of each kind.

    `long_lengths` are those of the texts longer than max_seq_len, of which `cut_tokens` in `cut_texts` are trained on.
    """

    def __init__(self) -> None:
        self.counts, self.locations = Counter[str](), dict[str, list[str]]()
        self.long_lengths, self.cut_texts, self.cut_tokens = array("I"), 0, 0
        self._latest: dict[str, str] = {}

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

    def add_long(self, tokens: int, kept_tokens: int) -> None:
        """Count a text that is longer than max_seq_len, of which this many tokens are trained on."""
        self.long_lengths.append(tokens)
        self.cut_texts += kept_tokens > 0
        self.cut_tokens += kept_tokens

    def lost(self, examples: int, tokens: int) -> LostToLength | None:
        """Return what is lost by length, with this many examples and tokens left; None if nothing is."""
        lengths = sorted(self.long_lengths, reverse=True)
        if not lengths:
            return None
        all_rows = examples - self.cut_texts + len(lengths)
        all_tokens = tokens - self.cut_tokens + sum(lengths)
        lost = zip(count(1), accumulate(lengths), lengths, strict=False)  # rows, tokens, and the last row's length
        most_rows, most_tokens = MAX_LOST_SHARE * all_rows, MAX_LOST_SHARE * all_tokens
        enough = next((length for rows, tokens, length in lost if rows > most_rows or tokens > most_tokens), None)
        return LostToLength(
            rows=len(lengths),
            all_rows=all_rows,
            tokens=sum(lengths) - self.cut_tokens,
            all_tokens=all_tokens,
            enough=enough,
            lines=self.counts[TOO_LONG_DROPPED] + self.counts[FIRST_ANSWER_TOO_LONG],
        )
