"""Tokenizers in GGUF: the metadata that llama.cpp reads instead of tokenizer.json.

llama.cpp has no pre-tokenizers of its own definition: a file names one of those built in. The name follows from the
definition in tokenizer.json, and a tokenizer with an unknown one is refused: under a wrong name prompts would be split
into other tokens than in training, without an error.

Known are byte-level BPE tokenizers. Not covered: SentencePiece (Llama 2, Mistral up to v0.3), WordPiece.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.data.tokenizer import load_tokenizer
from bench.records import schema
from bench.records.atomic_files import read_regular

MAX_TOKENIZER_BYTES = 256 << 20
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # token types of GGUF
# Pattern of Split in tokenizer.json, and whether merges are ignored for words of the vocabulary: by the pre-tokenizer's
# name in llama.cpp (src/llama-vocab.cpp).
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}{_REST}", True),
    "qwen2": (rf"{_CONTRACTIONS}|\p{{N}}{_REST}", False),
}


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """Metadata of a byte-level BPE tokenizer. `ends` are the tokens that end an answer, the tokenizer's own first."""

    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    bos: int | None
    unknown: int | None
    padding: int | None
    ends: Sequence[int]
    adds_bos: bool
    adds_eos: bool
    template: str | None


def read_gguf_tokenizer(folder: Path, vocabulary: int, end_ids: Sequence[int]) -> GgufTokenizer:
    """Read a checked folder's tokenizer for a model of `vocabulary` embeddings. Raises InputError."""
    path = folder / "tokenizer.json"
    try:
        document = schema.parse_object(read_regular(path, max_bytes=MAX_TOKENIZER_BYTES))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read") from error
    pre = pre_tokenizer_name(path, document)
    tokenizer = load_tokenizer(folder)
    tokens, types = [f"[PAD{index}]" for index in range(vocabulary)], [UNUSED] * vocabulary
    added = tokenizer.added_tokens_decoder
    for token, index in tokenizer.get_vocab().items():
        if index >= vocabulary:
            raise InputError(f"{path}: token {index}, but the model has {vocabulary} embeddings")
        if types[index] != UNUSED:
            raise InputError(f"{path}: two tokens with the id {index}")
        tokens[index], types[index] = token, NORMAL
        if index in added:
            types[index] = CONTROL if added[index].special or _looks_special(token) else USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in document["model"]["merges"]]
    eos, ids = tokenizer.eos_token_id, tokenizer("a").input_ids
    own_end = [eos] if eos is not None else []
    return GgufTokenizer(
        pre=pre,
        tokens=tokens,
        types=types,
        merges=merges,
        bos=tokenizer.bos_token_id,
        unknown=tokenizer.unk_token_id,
        padding=tokenizer.pad_token_id,
        ends=list(dict.fromkeys([*own_end, *end_ids])),
        adds_bos=adds_bos(tokenizer),
        adds_eos=eos is not None and ids[-1] == eos,
        template=tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None,
    )


def adds_bos(tokenizer: Any) -> bool:
    """Tell whether the tokenizer begins every text with its BOS token."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a").input_ids[0] == bos


def _looks_special(token: str) -> bool:
    """Tell whether an added token is a control token although its file does not say so, like llama.cpp."""
    return token in ("<pad>", "<mask>") or (token.startswith("<|") and token.endswith("|>"))


def pre_tokenizer_name(path: Path, document: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the pre-tokenizer in a tokenizer.json. Raises InputError for an unknown tokenizer."""
    model = document.get("model")
    model = model if isinstance(model, dict) else {}
    kind = "SentencePiece" if model.get("byte_fallback") else model.get("type")
    if kind != "BPE" or not model.get("merges"):
        raise InputError(f"{path}: a tokenizer of kind {kind}: GGUF is written for byte-level BPE only")
    normalizer = document.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:  # llama.cpp normalizes nothing
        raise InputError(f"{path}: normalizer: unknown to llama.cpp: {json.dumps(normalizer)[:120]}")
    name = _find_name(document.get("pre_tokenizer"), bool(model.get("ignore_merges")))
    if name is None:
        definition = json.dumps(document.get("pre_tokenizer"))[:200]
        raise InputError(f"{path}: pre_tokenizer: none that GGUF can name here: {definition}")
    return name


def _find_name(definition: object, ignores_merges: bool) -> str | None:
    if not isinstance(definition, dict):
        return None
    steps = definition.get("pretokenizers") if definition.get("type") == "Sequence" else [definition]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        return None
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    kinds = [step.get("type") for step in steps[:-1]]
    if last.get("use_regex", True):  # GPT-2's pattern
        if ignores_merges:
            return None
        if kinds == ["Digits"] and steps[0].get("individual_digits"):
            return "smollm"
        return None if kinds else "gpt-2"
    if kinds != ["Split"] or steps[0].get("behavior") != "Isolated" or steps[0].get("invert"):
        return None
    pattern = steps[0].get("pattern")
    split = (pattern.get("Regex") if isinstance(pattern, dict) else None, ignores_merges)
    return next((name for name, known in _SPLITS.items() if known == split), None)
