"""Control tokens that are typed in the texts of the data, like `</s>` in a user's question.

A tokenizer makes real control tokens of them: a user could end a turn or begin the assistant's. As text they are
tokenized like any other characters, the way mistral-common does. The template's own control tokens stay: while the
template renders, typed ones are replaced by characters for private use of the same length, so that offsets stay valid.
"""

import re
from collections.abc import Sequence
from typing import Any

from bench.data.inputs import InputError
from bench.train.readers import RawConversation

# Tokens of a thought are a part of the answer's text wherever they are typed.
THOUGHT_TOKENS = ("<think>", "</think>", "[THINK]", "[/THINK]")
# Unicode's private plane 16: a first character for each token, own or typed, then FILL up to its length.
OWN, TYPED, FILL, LAST = 0x100000, 0x108000, "\U0010fffd", "\U0010ffff"
MAX_TOKENS = 0x7000


class ControlTokens:
    """Control tokens of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {token.content: (number, token) for number, token in tokenizer.added_tokens_decoder.items()}
        special = {content: token for content, token in added.items() if token[1].special and content}
        self._tokens = {content: special[content] for content in sorted(special) if content not in THOUGHT_TOKENS}
        if len(self._tokens) > MAX_TOKENS:
            raise InputError(f"tokenizer.json: more than {MAX_TOKENS} control tokens; check the model folder")
        self._contents = list(self._tokens)
        self._indices = {content: index for index, content in enumerate(self._contents)}
        longest_first = sorted(self._contents, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._hidden = re.compile(f"[{chr(TYPED)}-{chr(TYPED + MAX_TOKENS - 1)}]{FILL}*")
        self._copy: tuple[Any, dict[int, int]] | None = None

    def find(self, conversation: RawConversation) -> list[str]:
        """List the control tokens that are typed in the turns, each once."""
        return sorted({token for _, text in conversation.turns for token in self._pattern.findall(text)})

    def hide(self, conversation: RawConversation) -> list[dict[str, str]]:
        """Return the messages with typed control tokens replaced, for the template. Raises InputError."""
        if any(chr(OWN) <= character <= LAST for _, text in conversation.turns for character in text):
            raise InputError(
                f"{conversation.location}: contains a control token and characters of Unicode's private plane 16; "
                "remove one of them"
            )
        return [
            {"role": role, "content": self._pattern.sub(lambda match: self._replacement(TYPED, match.group()), text)}
            for role, text in conversation.turns
        ]

    def encode(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        """Tokenize rendered texts; return token ids and encoding of each. Typed control tokens become text."""
        tokenizer, own_ids = self._copy = self._copy or self._make_copy()
        own = [self._pattern.sub(lambda match: self._replacement(OWN, match.group()), text) for text in texts]
        shown = [self._hidden.sub(lambda match: self._contents[ord(match.group()[0]) - TYPED], text) for text in own]
        encodings = tokenizer.encode_batch(shown, add_special_tokens=False)
        return [([own_ids.get(token, token) for token in encoding.ids], encoding) for encoding in encodings]

    def _replacement(self, base: int, content: str) -> str:
        return chr(base + self._indices[content]) + FILL * (len(content) - 1)

    def _make_copy(self) -> tuple[Any, dict[int, int]]:
        """Return a tokenizer that reads control tokens as text and knows their replacements, and the real ids."""
        backend = self._tokenizer.backend_tokenizer
        copy = type(backend).from_str(backend.to_str())
        copy.no_truncation()
        copy.no_padding()
        copy.encode_special_tokens = True
        real_ids = {self._replacement(OWN, content): number for content, (number, _) in self._tokens.items()}
        flags = ("lstrip", "rstrip", "single_word")
        copy.add_tokens(
            [
                type(token)(replacement, normalized=False, **{flag: getattr(token, flag) for flag in flags})
                for replacement, (_, token) in zip(real_ids, self._tokens.values(), strict=True)
            ]
        )
        added = copy.get_added_tokens_decoder().items()
        return copy, {number: real_ids[token.content] for number, token in added if token.content in real_ids}
