"""Files of published packages that tests read (tests/chat_templates.txt), and Mistral's tokenizers made from them.

The packages are not imported. Without `make templates` the tests that need them skip.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

FOLDERS = [Path(sys.prefix, "chat_templates"), ROOT / ".venv/chat_templates", *map(Path, sys.path)]
SPACE = "\u2581"
MISTRAL = "mistral_common/data"
TRL, AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"
MISTRAL_FILES = {  # vocabulary and chat template by the tokenizer's version
    "v1": (f"{MISTRAL}/tokenizer.model.v1", f"{AXOLOTL}/mistral_v1.jinja"),
    "v2": (f"{MISTRAL}/mistral_instruct_tokenizer_240216.model.v2", f"{AXOLOTL}/mistral_v2v3.jinja"),
    "v3": (f"{MISTRAL}/mistral_instruct_tokenizer_240323.model.v3", f"{AXOLOTL}/mistral_v2v3.jinja"),
}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
SPACE_RULES: dict[str, dict[str, Any]] = {  # as published before and after August 2024
    "every": {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, REPLACE]},
        "pre_tokenizer": None,
    },
    "first": {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False},
    },
}


def published_file(name: str) -> Path:
    """Return the path of a package's file. Skips the test if it is not installed."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    pytest.skip(f"{name.partition('/')[0]} is not installed: make templates")


def template_text(name: str) -> str:
    """Return the text of a package's chat template. Skips the test if it is not installed."""
    return published_file(name).read_text(encoding="utf-8")


def write_mistral_tokenizer(folder: Path, version: str, rule: str) -> list[Any]:
    """Write tokenizer.json and template of Mistral's published vocabulary; return its pieces, each with type and score.

    `rule` is a key of SPACE_RULES. Merges follow from the scores, as when the published tokenizer.json was made.
    """
    model, template = map(published_file, MISTRAL_FILES[version])
    proto = pytest.importorskip("transformers.utils.sentencepiece_model_pb2_new").ModelProto()
    proto.ParseFromString(model.read_bytes())
    kinds, ids = type(proto.pieces[0]), {piece.piece: index for index, piece in enumerate(proto.pieces)}
    added = [
        {
            "id": ids[piece.piece], "content": piece.piece, "special": piece.type != kinds.USER_DEFINED,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for piece in proto.pieces
        if piece.type in (kinds.CONTROL, kinds.UNKNOWN, kinds.USER_DEFINED)
    ]  # fmt: skip
    pieces = [(-piece.score, piece.piece) for piece in proto.pieces if piece.type == kinds.NORMAL]
    splits = [(piece[:at], piece[at:]) for _, piece in sorted(pieces) for at in range(1, len(piece))]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        **SPACE_RULES[rule],
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": ids,
            "merges": [pair for pair in splits if all(half in ids for half in pair)],
        },
    }  # fmt: skip
    _write(folder, document)
    (folder / "chat_template.jinja").write_bytes(template.read_bytes())
    return list(proto.pieces)


def write_tekken_tokenizer(folder: Path) -> int:
    """Write tokenizer.json of Mistral NeMo's published vocabulary; return its size. Merges follow from the ranks."""
    published = json.loads(published_file(f"{MISTRAL}/tekken_240718.json").read_text())
    control = published["config"]["default_num_special_tokens"]
    contents = [base64.b64decode(word["token_bytes"]) for word in published["vocab"]]
    contents = contents[: published["config"]["default_vocab_size"] - control]
    letters = pytest.importorskip("transformers.convert_slow_tokenizer").bytes_to_unicode()
    texts = ["".join(letters[byte] for byte in content) for content in contents]
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", *(f"<SPECIAL_{index}>" for index in range(5, control))]
    ids, flags = set(texts), dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    split = {"type": "Split", "pattern": {"Regex": published["config"]["pattern"]}, "behavior": "Isolated"}
    document = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": index, "content": name, "special": True, **flags} for index, name in enumerate(names)],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {**split, "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "ignore_merges": True, "vocab": {text: index for index, text in enumerate(names + texts)},
            "merges": [
                (text[:at], text[at:])
                for text in texts
                for at in range(1, len(text))
                if text[:at] in ids and text[at:] in ids
            ],
        },
    }  # fmt: skip
    _write(folder, document)
    return len(names) + len(texts)


def _write(folder: Path, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
