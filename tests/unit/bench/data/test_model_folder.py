"""Every unusable model folder is rejected in one line that names the file and the key."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from bench.data.demo import write_sums
from bench.data.inputs import InputError
from bench.data.model_folder import check_model, check_template, end_tokens, read_shapes
from bench.data.tokenizer import load_tokenizer
from bench.data.trial_inputs import check_trials
from bench.records.paths import NODE_NAME_VARIABLE
from tests.support.cases import Case, load_cases
from tests.support.small_inputs import edit_json, write_weights


def error_of(folder: Path) -> str:
    def check() -> None:
        check_model(folder)
        check_template(folder)

    with pytest.raises(InputError) as caught:
        check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_folder_is_answered_by_what_helps_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    fetched = "`inv model.fetch --here --model=org/model`.* --model=models/org--model"
    for name, remedy in (("org/model", fetched), *((name, "`inv model.demo`") for name in ("models/absent", "absent"))):
        assert re.search(remedy, error_of(Path(name)))
    monkeypatch.setenv(NODE_NAME_VARIABLE, "node-1")
    assert "pods' volume" in error_of(Path("org/model")), "a pod has no such command"


@pytest.mark.parametrize("folder", ["model_folder", "sharded_folder"])
@pytest.mark.parametrize("model_type", ["mistral", "llama"])
def test_a_good_folder_of_one_or_several_shards_is_described(request, folder, model_type):
    folder = request.getfixturevalue(folder)
    edit_json(folder / "config.json", model_type=model_type)
    facts = check_model(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    parameters = 2 * 32 * 8 + 2 * (2 * 64 + 2 * 32 + 3 * 128) + 5 * 8
    assert (facts.parameters, facts.bytes) == (parameters, size)
    assert facts.max_position_embeddings == 64


@pytest.mark.parametrize("model_type", ["mistral", "of_no_known_family"])
def test_a_head_of_its_own_and_a_config_that_ties_it_contradict_each_other(model_folder: Path, model_type: str):
    edit_json(model_folder / "config.json", tie_word_embeddings=True, model_type=model_type)
    check_model(model_folder)  # a copy of the embeddings is stored, too
    content = bytearray((model_folder / "model.safetensors").read_bytes())
    length = int.from_bytes(content[:8], "little")
    end = json.loads(content[8 : 8 + length])["lm_head.weight"]["data_offsets"][1]
    content[7 + length + end] ^= 1
    (model_folder / "model.safetensors").write_bytes(content)
    expected = r"config\.json: tie_word_embeddings is true, .* lm_head\.weight and model\.embed_tokens\.weight differ; "
    assert re.search(expected, error_of(model_folder))
    edit_json(model_folder / "config.json", tie_word_embeddings=False)
    whole = check_model(model_folder).parameters
    shapes = {name: list(shape) for name, shape in read_shapes(model_folder / "model.safetensors").items()}
    table = math.prod(shapes.pop("lm_head.weight"))
    write_weights(model_folder / "model.safetensors", shapes)
    if model_type != "mistral":
        assert "is false, but the weights have only model.embed_tokens" in error_of(model_folder)
    edit_json(model_folder / "config.json", tie_word_embeddings=True)
    assert check_model(model_folder).parameters == whole - table  # a tied layer need not be stored


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_file_that_is_missing_or_not_a_json_object_is_refused_by_name(model_folder: Path, name):
    contents = {b"": "JSON, truncated", b'{"model_type": "mis': "JSON, truncated", b"\xff\xfe": "JSON, truncated"}
    for content, expected in {**contents, b"[]": "JSON object, found a list"}.items():
        (model_folder / name).write_bytes(content)
        assert f"{name}: " in error_of(model_folder)
        assert name.endswith("safetensors") or expected in error_of(model_folder)
    (model_folder / name).unlink()
    assert f"{name}: missing" in error_of(model_folder) or name == "tokenizer_config.json"


@pytest.mark.parametrize("name", ["x.pkl", "x.BIN", "original/a.00.pth"])
def test_a_pickle_is_refused_by_name(model_folder: Path, name):
    (model_folder / name).parent.mkdir(exist_ok=True)
    (model_folder / name).write_bytes(b"")
    assert f"{name}: a pickle" in error_of(model_folder)


@pytest.mark.parametrize("case", load_cases(__file__, "rejected_models.yaml"))
def test_a_changed_file_of_a_model_is_rejected_by_its_key(model_folder: Path, case: Case):
    edit_json(model_folder / case["file"], **case["changes"])
    assert re.search(case["expected"], error_of(model_folder))


def test_weights_that_are_cut_longer_or_damaged_are_refused(model_folder: Path):
    path = model_folder / "model.safetensors"
    whole, header = path.read_bytes(), b'{"a": {"shape": "x", "data_offsets": [0, 2]}}'
    damaged = [whole[:length] for length in (0, 7, 8, 200, len(whole) // 2, len(whole) - 1)]
    for content in (*damaged, whole + b"x", len(header).to_bytes(8, "little") + header):
        path.write_bytes(content)
        assert "model.safetensors: truncated" in error_of(model_folder)


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        *((weight_map, "index.json: weight_map: ") for weight_map in (None, {}, {"a": 3})),
        ({"a": "../out.safetensors"}, "out.safetensors: missing"),
        ({"a": "model-00001-of-00002.safetensors"}, "model-00001-of-00002.safetensors: a: missing"),
    ],
)
def test_an_index_without_a_map_or_that_names_another_file_is_rejected(sharded_folder: Path, weight_map, expected):
    (sharded_folder.parent / "out.safetensors").write_bytes(b"")
    edit_json(sharded_folder / "model.safetensors.index.json", weight_map=weight_map)
    assert expected in error_of(sharded_folder)


NAMED = [{"name": "tool_use", "template": "{{ messages }}"}]


@pytest.mark.parametrize(
    ("in_settings", "files", "expected"),
    [
        (None, {"chat_template.json": "{{ messages }}"}, None),
        (None, {"chat_template.json": 7}, r"json\); "),
        (NAMED, {}, "only templates named tool_use, .*; .* train.chat_template"),
        ({"rag": "{{ messages }}"}, {}, "only templates named rag"),
        ([], {}, r"json\); "),
        (None, {"chat_template.jinja": " "}, r"json\); "),
        ("{{ messages }}", {"chat_template.jinja": ""}, r"json\); "),
        ([*NAMED, {"name": "default", "template": "{{ messages }}"}], {}, None),
        (NAMED, {"chat_template.jinja": "{{ messages }}"}, None),
    ],
)
def test_a_template_counts_only_where_the_tokenizer_finds_it(
    model_folder: Path, tokenizer_of, in_settings, files, expected
):
    edit_json(model_folder / "tokenizer_config.json", chat_template=in_settings)
    for name, text in files.items():
        (model_folder / name).write_text(json.dumps({"chat_template": text}) if name.endswith("json") else text)
    if expected is None:
        check_template(model_folder)
    else:
        assert re.search(f"^{model_folder}: no chat template.*{expected}", error_of(model_folder))
    tokenizer_of("chatml").backend_tokenizer.save(str(model_folder / "tokenizer.json"))
    try:
        text = load_tokenizer(model_folder).get_chat_template()
    except ValueError:
        text = ""
    assert bool(text.strip()) == (expected is None)


def test_the_digest_depends_only_on_files_that_affect_the_computation(model_folder: Path):
    before = check_model(model_folder).sha256
    (model_folder / "README.md").write_text("hello")
    assert check_model(model_folder).sha256 == before
    write_sums(model_folder)
    assert check_model(model_folder).sha256 == before
    (model_folder / "SHA256SUMS").unlink()
    edit_json(model_folder / "config.json", rope_theta=1e6)
    assert check_model(model_folder).sha256 != before


def test_wrong_or_invalid_checksums_are_rejected_by_name(model_folder: Path):
    write_sums(model_folder)
    sums = model_folder / "SHA256SUMS"
    whole = sums.read_text()
    sums.write_text("".join(line for line in whole.splitlines(True) if "tokenizer.json" not in line))
    assert re.search(r"SHA256SUMS: .* tokenizer\.json; ", error_of(model_folder))
    sums.write_text("f" * 64 + "  config.json\nnonsense\n")
    assert "SHA256SUMS: line 2: " in error_of(model_folder)
    sums.write_text(whole)
    edit_json(model_folder / "config.json", rope_theta=1e6)
    assert re.search(r"config\.json: .*SHA256SUMS", error_of(model_folder))


def test_the_checksums_of_large_weights_are_trusted(model_folder: Path, monkeypatch):
    write_sums(model_folder)
    weights = model_folder / "model.safetensors"
    monkeypatch.setattr("bench.data.model_folder.ALWAYS_HASHED_BYTES", weights.stat().st_size - 1)
    hashed = []
    monkeypatch.setattr("bench.data.model_folder.sha256_of", lambda path: hashed.append(path.name) or "0" * 64)
    assert "config.json: " in error_of(model_folder)
    monkeypatch.undo()
    monkeypatch.setattr("bench.data.model_folder.ALWAYS_HASHED_BYTES", weights.stat().st_size - 1)
    before = check_model(model_folder).sha256
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")  # equal size: only hashing the file could detect it
    assert check_model(model_folder).sha256 == before


def test_trials_are_checked_together_and_the_wrong_one_is_named(model_folder: Path, data_file: Path, make_trial):
    valid = make_trial(model=str(model_folder), data=str(data_file))
    check_trials([dataclasses.replace(valid, max_seq_len=64)])
    for changes, expected in (
        ({"max_seq_len": 65}, "max_seq_len: 65 .* 64 positions"),
        ({"lora_targets": ("q_proj", "q_prj")}, "lora_targets: .* 'q_prj'; .* down_proj, "),
        ({"model": "no/model"}, "no/model: .*; `inv model.fetch --here"),
        ({"data": "no.jsonl"}, r"no\.jsonl: .*No such file"),
        ({"micro_batch_size": 21}, r" 21 .*\(micro_batch_size\), found 20"),
    ):
        with pytest.raises(InputError, match=f"^trial second: .*{expected}"):
            check_trials([valid, dataclasses.replace(valid, name="second", **changes)])


def test_the_tokens_that_end_an_answer_are_those_of_the_config(tmp_path: Path) -> None:
    assert end_tokens(tmp_path) == set()
    for value, expected in (([3, 5], {3, 5}), (3, {3}), (None, set())):
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": value}))
        assert end_tokens(tmp_path) == expected
