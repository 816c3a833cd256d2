"""Files of published packages that tests read (tests/chat_templates.txt), and Mistral's tokenizer made from them.

The packages are not imported. Without `make templates` the tests that need them skip.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

FOLDERS = [Path(sys.prefix, "chat_templates"), ROOT / ".venv/chat_templates", *map(Path, sys.path)]
SPACE = "\u2581"
TRL, AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"
MISTRAL_FILES = ("mistral_common/data/tokenizer.model.v1", f"{AXOLOTL}/mistral_v1.jinja")  # vocabulary, chat template
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


def write_mistral_tokenizer(folder: Path, rule: str) -> None:
    """Write tokenizer.json and template of Mistral's published vocabulary.

    `rule` is a key of SPACE_RULES. Merges follow from the scores, as when the published tokenizer.json was made.
    """
    model, template = map(published_file, MISTRAL_FILES)
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
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "chat_template.jinja").write_bytes(template.read_bytes())
