"""A merge in GGUF: what is written, and which models and tokenizers are refused."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from bench.adapter import merge
from bench.adapter.gguf_file import check_family, permute_heads
from bench.adapter.gguf_tokenizer import pre_tokenizer_name
from bench.adapter.modelfile import render_modelfile
from bench.data.inputs import InputError
from bench.data.tokenizer import load_tokenizer
from bench.records.adapter import GgufFacts

gguf = pytest.importorskip("gguf", reason="the extra `real` is not installed")
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OWN_SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

WITHIN = (
    "{{% set system = messages[0].content if messages[0].role == 'system' %}}"
    "{{% for m in messages[1 if system else 0:] %}}"
    "{{{{ '[' if m.role == 'user' }}}}{{{{ '<<' + system + '>>' if system and {place} }}}}{{{{ m.content }}}}"
    "{{{{ ']' if m.role == 'user' else ' END ' }}}}{{% endfor %}}"
)


@pytest.fixture
def gguf_fields(inputs, adapter, merge_fields, tmp_path) -> Callable[..., dict[str, Any]]:
    """Fields of a MergeRequest for a model whose tokenizer has a merge, as every real one."""
    folders = {"model": tmp_path / "tiny--merges", "adapter": tmp_path / "adapter"}
    shutil.copytree(inputs[0], folders["model"])
    shutil.copytree(adapter, folders["adapter"])
    document = json.loads((inputs[0] / "tokenizer.json").read_text())
    document["model"]["vocab"]["th"] = len(document["model"]["vocab"])
    for token in document["added_tokens"]:
        token["id"] += 1
    document["model"]["merges"] = [["t", "h"]]
    for folder in folders.values():
        (folder / "tokenizer.json").write_text(json.dumps(document))
    return lambda **changes: merge_fields(**{**{name: str(path) for name, path in folders.items()}, **changes})


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors of the folder's file."""
    (path,) = folder.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items()}, {t.name: t for t in reader.tensors}


def merged_tensors(gguf_fields) -> dict[str, Any]:
    out = str(Path(gguf_fields()["out"]).with_name("plain"))
    merge.merge(merge.MergeRequest(**gguf_fields(out=out)), lambda _: None)
    return {name: tensor for path in Path(out).glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_the_file_holds_the_merged_weights_and_the_tokenizer_of_the_training(modules, gguf_fields):
    merge.merge(merge.MergeRequest(**gguf_fields(format="gguf", end_ids=[5])), lambda _: None)
    metadata, tensors = read(Path(gguf_fields()["out"]))
    torch, expected = modules.torch, merged_tensors(gguf_fields)
    assert len(tensors) == len(expected)
    plain = torch.from_numpy(tensors["blk.1.attn_v.weight"].data.copy()).view(torch.bfloat16)
    torch.testing.assert_close(plain, expected["model.layers.1.self_attn.v_proj.weight"], rtol=0, atol=0)
    keys = torch.from_numpy(tensors["blk.1.attn_k.weight"].data.copy()).view(torch.bfloat16)
    heads = json.loads((Path(gguf_fields()["model"]) / "config.json").read_text())["num_key_value_heads"]
    stored = permute_heads(expected["model.layers.1.self_attn.k_proj.weight"], heads)
    torch.testing.assert_close(keys, stored, rtol=0, atol=0)
    tokenizer = load_tokenizer(Path(gguf_fields()["model"]))
    tokens = metadata["tokenizer.ggml.tokens"]
    assert {token: tokens.index(token) for token in tokenizer.get_vocab()} == tokenizer.get_vocab()
    assert metadata["tokenizer.chat_template"] == tokenizer.chat_template
    ends = [metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot")]
    assert ends == [tokenizer.eos_token_id, 5]
    assert metadata["general.architecture"] == "llama"
    merge.verify_sums(Path(gguf_fields()["out"]))


def test_eight_bits_change_a_weight_by_at_most_half_a_step_and_the_scales_rounding(gguf_fields):
    facts = merge.merge(merge.MergeRequest(**gguf_fields(format="gguf-q8_0")), lambda _: None)
    _, tensors = read(Path(gguf_fields()["out"]))
    stored = tensors["blk.0.ffn_up.weight"]
    weight = merged_tensors(gguf_fields)["model.layers.0.mlp.up_proj.weight"].float().numpy()
    read_back = gguf.quants.dequantize(stored.data, stored.tensor_type)
    steps = abs(weight.reshape(-1, 32)).max(axis=1) / 127
    assert (abs(weight - read_back).reshape(-1, 32).max(axis=1) <= 0.57 * steps).all()
    assert isinstance(facts, GgufFacts)
    assert facts.quantization == "q8_0"
    with pytest.raises(InputError, match="not this merge"):
        merge.merge(merge.MergeRequest(**gguf_fields(format="gguf")), lambda _: None)


CONFIG = {
    "model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": None,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "phi3"}, "phi3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": "8"}}, "factor"),
        ({"rope_parameters": {"rope_theta": math.inf}}, "rope_theta"),
        ({"model_type": "ministral3"}, "default"),
        ({"model_type": "ministral3", "rope_parameters": {**YARN, "factor": None}}, "factor"),
        ({"model_type": "ministral3", "rope_parameters": {**YARN, "mscale": 0.5}}, "attention factor"),
        ({"model_type": "gemma3", "text_config": {**CONFIG, "model_type": "gemma3_text"}}, "gemma3"),
        ({"sliding_window": 128}, "sliding window"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "GeGLU"),
    ],
)
def test_what_was_not_verified_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    assert check_family(CONFIG).architecture == "llama"
    ministral = {**CONFIG, "model_type": "ministral3", "rope_parameters": YARN}
    for config in (ministral, {"model_type": "mistral3", "text_config": ministral}):
        assert check_family(config).architecture == "mistral3"
    with pytest.raises(InputError, match=named):
        check_family({**CONFIG, **changes})


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}"
    r"\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)


def split(*patterns: str) -> dict[str, Any]:
    step = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [{**step, "pattern": {"Regex": pattern}} for pattern in patterns]
    return {"type": "Sequence", "pretokenizers": [*steps, {**BYTES, "use_regex": False}]}


@pytest.mark.parametrize(
    ("definition", "model", "name"),
    [
        (BYTES, {}, "gpt-2"),
        ({"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}, {}, "smollm"),
        (split(LLAMA3), {"ignore_merges": True}, "llama-bpe"),
        (split(LLAMA3.replace("{1,3}", "")), {}, "qwen2"),
        (split(TEKKEN), {"ignore_merges": True}, "tekken"),
        (split(TEKKEN), {}, "tekken"),
        (split(*DEEPSEEK), {}, "deepseek-v3"),
        (split(*DEEPSEEK), {"ignore_merges": True}, None),
        (split(*DEEPSEEK[:2]), {}, None),
        (split(LLAMA3), {}, None),
        (split(r"\w+"), {}, None),
        ({**BYTES, "add_prefix_space": True}, {}, None),
        ({"type": "Metaspace"}, {}, None),
        (None, {"byte_fallback": True}, None),
        (BYTES, {"type": "Unigram"}, None),
        ({"type": "Sequence", "pretokenizers": "x"}, {}, None),
    ],
)
def test_a_pre_tokenizer_has_llama_cpps_name_or_is_refused(definition: Any, model: dict[str, Any], name: str) -> None:
    document = {"model": {"type": "BPE", "merges": ["a b"], **model}, "pre_tokenizer": definition}
    if name is None:
        with pytest.raises(InputError):
            pre_tokenizer_name(Path("tokenizer.json"), document)
    else:
        assert pre_tokenizer_name(Path("tokenizer.json"), document) == name


@pytest.mark.parametrize(
    ("template", "system", "expected"),
    [
        (CHATML + PROMPT, None, ["<|im_start|>user\n{{ .Content }}<|im_end|>\n"]),
        (OWN_SYSTEM + CHATML + PROMPT, None, ['SYSTEM """Be brief."""']),
        (OWN_SYSTEM + CHATML + PROMPT, "Write JSON.", ['SYSTEM """Write JSON."""']),
        (OWN_SYSTEM.replace("Be brief.", "") + CHATML + PROMPT, None, []),
        (OWN_SYSTEM.replace("Be brief.", "") + CHATML + PROMPT, "Write JSON.", ['SYSTEM """Write JSON."""']),
        (WITHIN.format(place="loop.last"), None, ["{{ if and $.System (eq (len (slice $.Messages $i)) 1) }}"]),
        (
            WITHIN.format(place="loop.first"),
            None,
            ["{{ if and $.System (eq $i 1) }}<<{{ $.System }}>>{{ end }}{{ .Content }}"],
        ),
        (WITHIN.format(place="false"), None, []),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", None, []),
        ("{{ raise_exception('no') }}", None, []),
        ("{% for m in messages %}{{ '{{' + m.role }}\n{{ m.content }}{% endfor %}", None, []),
    ],
)
def test_ollama_gets_the_template_in_gos_form_or_none(inputs, template, system, expected) -> None:
    tokenizer = load_tokenizer(inputs[0])
    tokenizer.chat_template = template
    text = render_modelfile(tokenizer, "model-bf16.gguf", [tokenizer.eos_token_id], system)
    assert text.startswith("FROM ./model-bf16.gguf\n")
    assert f'PARAMETER stop "{tokenizer.eos_token}"\n' in text
    assert ("TEMPLATE" in text.replace("No TEMPLATE", "")) == bool(expected)
    assert all(part in text for part in expected)
