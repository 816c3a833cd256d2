"""SentencePiece tokenizers in GGUF: types, scores and spaces of Mistral's own vocabularies, and what is refused."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.adapter.gguf_sentencepiece import piece_scores, space_prefix
from bench.adapter.gguf_tokenizer import SENTENCEPIECE, read_gguf_tokenizer
from bench.data.inputs import InputError
from bench.data.tokenizer import ChatTemplate, load_tokenizer
from tests.support.cases import Case, load_cases
from tests.support.published import MISTRAL_FILES, SPACE_RULES, write_mistral_tokenizer

PATH = Path("tokenizer.json")
BYTES = {f"<0x{value:02X}>": value for value in range(256)}
load_once = functools.cache(load_tokenizer)
VOCABULARY = {**BYTES, "a": 256, "b": 257, "ab": 258}


def write_small_tokenizer(folder: Path, edit: Callable[[dict[str, Any]], object] = dict.copy) -> None:
    """Write an edited tokenizer.json with VOCABULARY, <s> and </s>."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = {"<s>": 259, "</s>": 260}
    document = {
        **SPACE_RULES["first"],
        "added_tokens": [{"id": index, "content": token, **flags} for token, index in added.items()],
        "model": {"type": "BPE", "byte_fallback": True, "vocab": VOCABULARY | added, "merges": [["a", "b"]]},
    }
    edit(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "config.json").write_text('{"model_type": "llama"}')


@pytest.fixture(scope="module")
def mistral(tmp_path_factory) -> Callable[..., tuple[Path, list[Any]]]:
    """Return a folder with Mistral's tokenizer of a version and rule, and its published pieces."""
    made: dict[tuple[str, str], tuple[Path, list[Any]]] = {}

    def make(version: str, rule: str = "first") -> tuple[Path, list[Any]]:
        if (version, rule) not in made:
            folder = tmp_path_factory.mktemp(f"mistral-{version}")
            made[version, rule] = folder, write_mistral_tokenizer(folder, version, rule)
        return made[version, rule]

    return make


@pytest.mark.parametrize("version", MISTRAL_FILES)
def test_types_and_order_of_scores_are_those_of_mistrals_file(mistral, version: str) -> None:
    folder, pieces = mistral(version)
    read = read_gguf_tokenizer(folder, len(pieces) + 64, [])
    assert (read.model, read.bos, read.ends, read.adds_bos) == (SENTENCEPIECE, 1, [2], True)
    assert read.tokens[: len(pieces)] == [piece.piece for piece in pieces]
    assert read.types == [*(piece.type for piece in pieces), *[5] * 64]  # GGUF has SentencePiece's numbers
    merged = [
        (piece.score, score) for piece, score in zip(pieces, read.scores, strict=False)
        if piece.type == 1 and len(piece.piece) > 1
    ]  # fmt: skip
    by_score = [score for _, score in sorted(merged)]
    assert by_score == sorted(by_score)
    assert len(set(by_score)) == len(by_score)


@pytest.mark.parametrize(("rule", "expected"), [("first", False), ("every", True)])
def test_a_space_is_written_where_the_template_needs_it(mistral, rule: str, expected: bool) -> None:
    folder, pieces = mistral("v3", rule)
    assert read_gguf_tokenizer(folder, len(pieces), []).adds_space_prefix is expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", None),
    ],
)
def test_a_template_that_needs_both_is_refused(tmp_path, template: str | None, expected: bool | None) -> None:
    write_small_tokenizer(tmp_path)
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    if expected is None:
        with pytest.raises(InputError, match="pre_tokenizer"):
            read_gguf_tokenizer(tmp_path, 300, [])
    else:
        assert read_gguf_tokenizer(tmp_path, 300, []).adds_space_prefix is expected


@pytest.mark.parametrize("case", load_cases(__file__, "mistral_conversations.yaml"))
def test_the_tokenizers_of_the_tests_are_mistrals(mistral, case: Case) -> None:
    tokenizer = load_once(mistral(case["version"])[0])
    messages = [{"role": role, "content": content} for role, content in case["messages"]]
    text = ChatTemplate(tokenizer).render("", messages, prompt=True)
    assert tokenizer(text, add_special_tokens=False).input_ids == case["expected"]


@pytest.mark.parametrize("case", load_cases(__file__, "sentencepiece.yaml"))
def test_spaces_follow_from_the_definition(case: Case) -> None:
    document = {**SPACE_RULES["first"], **case["changes"]}
    if case["rule"] is None:
        with pytest.raises(InputError, match="cannot hold"):
            space_prefix(PATH, document)
    else:
        assert space_prefix(PATH, document).value == case["rule"]


def test_scores_fall_from_merge_to_merge() -> None:
    vocabulary = {**VOCABULARY, "abb": 259, "<s>": 260}
    scores = piece_scores(PATH, vocabulary, [["a", "b"], ["ab", "b"]], {"<s>"})
    assert [scores[piece] for piece in ("ab", "abb", "a", "b", "<0x0A>", "<s>")] == [0, -1, -2, -3, 0, -1000]


@pytest.mark.parametrize(
    ("changes", "merges", "named"),
    [
        ({}, [], "are not merged"),
        ({"bb": 259}, [["a", "b"]], "are not merged"),
        ({"aa": 259, "aab": 260}, [["a", "a"], ["aa", "b"], ["a", "b"], ["a", "ab"]], "two ranks"),
        ({"<0x0A>": None}, [["a", "b"]], "byte pieces"),
    ],
)
def test_merges_that_llama_cpp_would_not_follow_are_refused(changes, merges, named: str) -> None:
    vocabulary = {piece: index for piece, index in {**VOCABULARY, **changes}.items() if index is not None}
    with pytest.raises(InputError, match=named):
        piece_scores(PATH, vocabulary, merges, set())


@pytest.mark.parametrize(
    ("edit", "embeddings", "named"),
    [
        (dict.copy, 260, "embeddings"),
        (lambda document: document["added_tokens"][0].update(rstrip=True), 261, "spaces around"),
        (lambda document: document["model"]["vocab"].update({"[PAD7]": 5}), 261, "."),
        (lambda document: document["model"]["vocab"].update({"[PAD270]": 261}), 280, "unused"),
        (lambda document: document["model"]["vocab"].update({"c": 5}), 261, "two tokens"),
        (lambda document: document["model"]["merges"].pop(), 261, "not merged"),
        (lambda document: document["model"]["merges"].append(["zz", "zz"]), 261, "cannot be loaded"),
        (lambda document: document["model"].update(merges=7), 261, "cannot be loaded"),
        (lambda document: document["model"].update(vocab={}), 261, "cannot be loaded"),
        (lambda document: document["model"].update(vocab=None), 261, "cannot be loaded"),
        (lambda document: document["added_tokens"][0].update(id=1 << 40), 261, "."),
        (lambda document: document["added_tokens"][0].update(content=7), 261, "cannot be loaded"),
    ],
)
def test_hostile_files_are_refused_by_one_line(tmp_path, edit, embeddings: int, named: str) -> None:
    write_small_tokenizer(tmp_path)
    assert read_gguf_tokenizer(tmp_path, 261, []).tokens[258:] == ["ab", "<s>", "</s>"]
    write_small_tokenizer(tmp_path, edit)
    with pytest.raises(InputError, match=named) as error:
        read_gguf_tokenizer(tmp_path, embeddings, [])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"model": {"type": "BPE", "byte_fallback": true}}',
        b'{"a": 1, "a": 2}',
        b"[" * 99999,
    ],
)
def test_files_that_are_no_tokenizer_are_refused_by_one_line(tmp_path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InputError) as error:
        read_gguf_tokenizer(tmp_path, 8, [])
    assert "\n" not in str(error.value)
