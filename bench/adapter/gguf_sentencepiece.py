"""SentencePiece tokenizers in GGUF, as of Llama 2 and Mistral up to v0.3: BPE over whole texts with byte fallback.

llama.cpp reads no merges. It joins two neighbouring pieces wherever their text is a piece, the highest score first.
tokenizer.json has merges in an order. `piece_scores` derives scores of the same order, and refuses merges that
llama.cpp would not follow. tokenizer.model is not read: the training did not use it either.

tokenizer.json writes a space before some texts, llama.cpp before each text after a control token or before none.
`adds_space_prefix` finds out which of both the chat template needs.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.data.tokenizer import ChatTemplate

SPACE = "\u2581"
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
ADDED_SCORE, UNUSED_SCORE = -1000.0, -10000.0  # what llama.cpp's converter writes for pieces without merges
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_CONVERSATIONS = (("user",), ("user", "assistant", "user"), ("system", "user", "assistant", "user"))


class TokenizerRefused(InputError):
    """Tokenizer that llama.cpp would not follow."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, remedy="omit --format: the model folder has the tokenizer as it is")


class SpacePrefix(Enum):
    """Texts before which the tokenizer writes a space; a control token ends a text."""

    EVERY = "every text"
    UNSPACED = "every text that does not begin with one"
    FIRST = "the first text, if it does not begin with one"
    NONE = "none"


def is_sentencepiece(document: Mapping[str, Any]) -> bool:
    """Tell whether a tokenizer.json is BPE with byte fallback."""
    model = document.get("model")
    return isinstance(model, dict) and model.get("type") == "BPE" and bool(model.get("byte_fallback"))


def space_prefix(path: Path, document: Mapping[str, Any]) -> SpacePrefix:
    """Read the rule of a tokenizer.json. Raises InputError for a definition that llama.cpp cannot follow."""
    normalizer, splitter = document.get("normalizer"), document.get("pre_tokenizer")
    steps = (
        normalizer.get("normalizers") if isinstance(normalizer, dict) and "normalizers" in normalizer else normalizer
    )
    if steps == [_PREPEND, _REPLACE] and splitter is None:
        return SpacePrefix.EVERY
    if steps in (_REPLACE, [_REPLACE]) and splitter in (None, _SPLIT):  # no space is left to split at
        return SpacePrefix.NONE
    if not steps and isinstance(splitter, dict):
        whole = {"type": "Metaspace", "replacement": SPACE, "split": False}
        schemes = {"always": SpacePrefix.UNSPACED, "first": SpacePrefix.FIRST, "never": SpacePrefix.NONE}
        for scheme, rule in schemes.items():
            if splitter == {**whole, "prepend_scheme": scheme}:
                return rule
    definition = json.dumps({"normalizer": normalizer, "pre_tokenizer": splitter})[:200]
    raise TokenizerRefused(f"{path}: a SentencePiece tokenizer that GGUF cannot hold: {definition}")


def piece_scores(
    path: Path, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], added: set[str]
) -> dict[str, float]:
    """Return the score of each piece of the vocabulary. Raises InputError for merges that no scores can express.

    A piece's score falls by 1 from merge to merge, then from id to id for pieces that no merge forms.
    """
    missing_bytes = 256 - sum(BYTE_PIECE.fullmatch(piece) is not None for piece in vocabulary)
    if missing_bytes:
        raise TokenizerRefused(f"{path}: model.vocab: {missing_bytes} of the 256 byte pieces are missing")
    formed = ["".join(pair) for pair in merges]
    starts = [piece for index, piece in enumerate(formed) if index == 0 or formed[index - 1] != piece]
    ranks = {piece: rank for rank, piece in enumerate(starts)}
    if len(ranks) < len(starts) and (
        twice := {piece for rank, piece in enumerate(starts) if ranks[piece] != rank} - added
    ):
        raise TokenizerRefused(
            f"{path}: model.merges: {min(twice)!r} is merged at two ranks: GGUF has one score for it"
        )
    _check_merges(path, vocabulary, {tuple(pair) for pair in merges}, added)
    following = count(len(starts))
    scores = {}
    for piece in sorted(vocabulary, key=vocabulary.__getitem__):
        if piece in added:
            scores[piece] = ADDED_SCORE
        elif BYTE_PIECE.fullmatch(piece):
            scores[piece] = 0.0
        else:
            scores[piece] = -float(ranks[piece] if piece in ranks else next(following))
    return scores


def _check_merges(path: Path, vocabulary: Mapping[str, int], pairs: set[tuple[str, ...]], added: set[str]) -> None:
    """Check that any two pieces which form a third are merged, since llama.cpp merges them. Raises InputError."""
    for piece in vocabulary:
        if piece in added or BYTE_PIECE.fullmatch(piece):
            continue
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            is_possible = all(len(half) == 1 or half in vocabulary for half in (left, right))
            if is_possible and (left, right) not in pairs:
                raise TokenizerRefused(
                    f"{path}: model.merges: {left!r} and {right!r} are not merged: llama.cpp merges them"
                )


def adds_space_prefix(path: Path, rule: SpacePrefix, tokenizer: Any) -> bool:
    """Tell whether llama.cpp shall write a space before each text. Raises InputError if only some texts need it.

    Without a chat template a prompt is one text.
    """
    if rule in (SpacePrefix.EVERY, SpacePrefix.NONE):
        return rule is SpacePrefix.EVERY
    needs = {need for text in _probes(tokenizer) for need in _needs_prefix(text, rule, tokenizer)}
    if needs == {True, False}:
        raise TokenizerRefused(
            f"{path}: pre_tokenizer: a space is written before some texts of the chat template and not before others; "
            "llama.cpp writes it before all or none"
        )
    return needs != {False}


def _probes(tokenizer: Any) -> Iterator[str]:
    if not isinstance(tokenizer.chat_template, str):
        return
    template = ChatTemplate(tokenizer)
    for roles in _CONVERSATIONS:
        messages = [{"role": role, "content": f"{role} {index}"} for index, role in enumerate(roles)]
        with contextlib.suppress(InputError):  # a template may refuse a role
            yield template.render("GGUF", messages, prompt=roles[-1] == "user")


def _needs_prefix(text: str, rule: SpacePrefix, tokenizer: Any) -> Iterator[bool]:
    """Yield for each text between control tokens whether the tokenizer writes a space before it."""
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    is_added = [True, *(token in tokenizer.added_tokens_decoder for token in encoding.ids)]
    for index, (before, current) in enumerate(pairwise(is_added)):
        if before and not current:
            start = encoding.offsets[index][0]
            yield text[start] != " " and (rule is SpacePrefix.UNSPACED or start == 0)
