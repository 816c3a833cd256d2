"""Tokenizers in GGUF: the metadata that llama.cpp reads instead of tokenizer.json.

llama.cpp has no pre-tokenizers of its own definition: a file names one of those built in. The name follows from the
definition in tokenizer.json, and a tokenizer with an unknown one is refused: under a wrong name prompts would be split
into other tokens than in training, without an error.

Known are byte-level BPE tokenizers and those of SentencePiece (`gguf_sentencepiece`). Not covered: Unigram, WordPiece.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.adapter.gguf_sentencepiece import (
    BYTE_PIECE,
    SPACE,
    UNUSED_SCORE,
    SpacePrefix,
    TokenizerRefused,
    adds_space_prefix,
    is_sentencepiece,
    piece_scores,
    space_prefix,
)
from bench.data.inputs import InputError
from bench.data.tokenizer import load_tokenizer
from bench.records import schema
from bench.records.atomic_files import read_regular

MAX_TOKENIZER_BYTES = 256 << 20
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"  # names of llama.cpp
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types of GGUF
# Patterns of Split in tokenizer.json, and whether merges are ignored for words of the vocabulary (None: merges form all
# of them), by the pre-tokenizer's name in llama.cpp (src/llama-vocab.cpp). Its tekken splits combining marks in another
# way, as in Hindi.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_LINES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPLITS = {
    "llama-bpe": ((rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}{_REST}",), True),
    "qwen2": ((rf"{_CONTRACTIONS}|\p{{N}}{_REST}",), False),
    "tekken": (
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LINES}",
        ),
        None,
    ),
    "deepseek-v3": (
        (
            r"\p{N}{1,3}",
            "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_LINES}",
        ),
        False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """Metadata of a tokenizer. `ends` are the tokens that end an answer, the tokenizer's own first.

    A byte-level one (`model` BYTE_LEVEL) has `merges`, a SENTENCEPIECE one `scores`.
    """

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    bos: int | None
    unknown: int | None
    padding: int | None
    ends: Sequence[int]
    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool
    template: str | None


def read_gguf_tokenizer(
    folder: Path, vocabulary: int, end_ids: Sequence[int], source: Path | None = None
) -> GgufTokenizer:
    """Read a checked folder's tokenizer for a model of `vocabulary` embeddings. Raises InputError.

    `source` is the file that messages name, if the folder is a copy.
    """
    path = source or folder / "tokenizer.json"
    try:
        schema.parse_object(read_regular(folder / "tokenizer.json", max_bytes=MAX_TOKENIZER_BYTES))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    tokenizer = load_tokenizer(folder)
    document = json.loads(tokenizer.backend_tokenizer.to_str())  # as the training used it
    ids, added = tokenizer.get_vocab(), {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    scores: dict[str, float] = {}
    if is_sentencepiece(document):
        model, pre, rule = SENTENCEPIECE, "default", space_prefix(path, document)
        scores = piece_scores(path, ids, document["model"]["merges"], set(added))
        has_prefix = adds_space_prefix(path, rule, tokenizer)
    else:
        model, pre, rule, has_prefix = BYTE_LEVEL, pre_tokenizer_name(path, document), SpacePrefix.NONE, False
    _check_added(path, added.values(), rule)
    tokens, types = _list_tokens(path, ids, vocabulary)
    for content, token in added.items():
        is_control = token.special or _looks_special(content)
        types[ids[content]] = CONTROL if is_control else USER_DEFINED
        if model == SENTENCEPIECE and not is_control:
            tokens[ids[content]] = content.replace(
                SPACE, " "
            )  # llama.cpp finds it in the text before it replaces spaces
    if model == SENTENCEPIECE:
        for content, index in ids.items():
            if BYTE_PIECE.fullmatch(content):
                types[index] = BYTE
        if tokenizer.unk_token_id is not None:
            types[tokenizer.unk_token_id] = UNKNOWN
    eos, example = tokenizer.eos_token_id, tokenizer("a").input_ids
    own_end = [eos] if eos is not None else []
    by_id = {ids[piece]: score for piece, score in scores.items()}
    return GgufTokenizer(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        merges=[] if scores else [" ".join(pair) for pair in document["model"]["merges"]],
        scores=[by_id.get(index, UNUSED_SCORE) for index in range(vocabulary)] if scores else [],
        bos=tokenizer.bos_token_id,
        unknown=tokenizer.unk_token_id,
        padding=tokenizer.pad_token_id,
        ends=list(dict.fromkeys([*own_end, *end_ids])),
        adds_bos=adds_bos(tokenizer),
        adds_eos=eos is not None and example[-1] == eos,
        adds_space_prefix=has_prefix,
        template=tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None,
    )


def _list_tokens(path: Path, ids: Mapping[str, int], vocabulary: int) -> tuple[list[str], list[int]]:
    """Return text and type of each id; ids without a token get a text of their own. Raises InputError."""
    tokens, types = [f"[PAD{index}]" for index in range(vocabulary)], [UNUSED] * vocabulary
    for token, index in ids.items():
        if index >= vocabulary:
            raise TokenizerRefused(f"{path}: token {index}, but the model has {vocabulary} embeddings")
        if types[index] != UNUSED:
            raise TokenizerRefused(f"{path}: two tokens with the id {index}")
        tokens[index], types[index] = token, NORMAL
    if len(set(tokens)) < vocabulary:
        raise TokenizerRefused(
            f"{path}: a token has the name of an unused one, [PAD...]: llama.cpp ends at such a file"
        )
    return tokens, types


def _check_added(path: Path, added: Iterable[Any], rule: SpacePrefix) -> None:
    """Check that llama.cpp finds the added tokens where the tokenizer does. Raises InputError."""
    for token in added:
        if token.lstrip or token.rstrip or token.single_word:
            raise TokenizerRefused(
                f"{path}: token {token.content!r} depends on the spaces around it; in llama.cpp none does"
            )
        if rule is SpacePrefix.EVERY and token.normalized and not token.special:
            raise TokenizerRefused(
                f"{path}: token {token.content!r} is found after a space only; llama.cpp finds it anywhere"
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
    if model.get("type") != "BPE" or not model.get("merges"):
        kind = model.get("type")
        raise TokenizerRefused(f"{path}: a tokenizer of kind {kind}: GGUF is written for BPE with merges only")
    normalizer = document.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": []}):  # llama.cpp has none
        raise TokenizerRefused(f"{path}: normalizer: unknown to llama.cpp: {json.dumps(normalizer)[:120]}")
    name = _find_name(document.get("pre_tokenizer"), bool(model.get("ignore_merges")))
    if name is None:
        definition = json.dumps(document.get("pre_tokenizer"))[:200]
        raise TokenizerRefused(f"{path}: pre_tokenizer: none that GGUF can name here: {definition}")
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
    patterns = []
    for step in steps[:-1]:
        pattern = step.get("pattern")
        if step.get("type") != "Split" or step.get("behavior") != "Isolated" or step.get("invert"):
            return None
        # Some files have line breaks where others have their escapes.
        text = str(pattern.get("Regex") if isinstance(pattern, dict) else None)
        patterns.append(text.replace("\r", r"\r").replace("\n", r"\n"))
    split = tuple(patterns)
    return next((name for name, known in SPLITS.items() if known in ((split, ignores_merges), (split, None))), None)
