"""GGUF files as llama.cpp reads them: the same tokens and the same logits as transformers, for each verified family.

pip install llama-cpp-python gguf    # needs a C++ compiler; without the packages these tests skip
"""

import importlib
import json
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import torch_stack
from bench.adapter import llama_cpp, merge
from bench.adapter.gguf_file import GgufFile
from bench.adapter.gguf_tokenizer import SPLITS, read_gguf_tokenizer
from bench.adapter.llama_cpp import LlamaCpp
from bench.data.demo import VOCABULARY, build_tokenizer
from bench.data.tokenizer import load_tokenizer
from bench.qlora.step import load_text_model
from bench.workloads.finetune.answers import PromptCase
from tests.support import tiny_training
from tests.support.cases import load_cases
from tests.support.published import MISTRAL_FILES, SPACE_RULES, write_mistral_tokenizer, write_tekken_tokenizer

pytest.importorskip("gguf", reason="needs gguf")
pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 2.0,
}  # fmt: skip
FAMILIES = {
    "mistral": ("Mistral", {"sliding_window": None}),
    "ministral3": ("Ministral3", {"head_dim": 32, "sliding_window": None, "rope_parameters": YARN}),
    "llama": ("Llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}
WITH_IMAGES = {"mistral3": ("ministral3", "Mistral3ForConditionalGeneration")}
VISION = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16,
    "num_attention_heads": 2, "patch_size": 14, "image_size": 28,
}  # fmt: skip
TEXT = "I've 3333 things, don't WE'VE?  \n\n \u00c4\u00d6 \u60f3 x=1;\t\tif (a)\r\n   2024-01-01 '\u00e9t\u00e9'"
HOSTILE_TEXTS = [case.values[0]["text"] for case in load_cases(__file__, "hostile_texts.yaml")]


def split(patterns: Sequence[str]) -> dict[str, Any]:
    step = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [{**step, "pattern": {"Regex": pattern}} for pattern in patterns]
    return {"type": "Sequence", "pretokenizers": [*steps, bytes_step(use_regex=False)]}


def bytes_step(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


PRE_TOKENIZERS = {
    "gpt-2": (bytes_step(use_regex=True), False),
    "smollm": (
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_step(use_regex=True)],
        },
        False,
    ),
    **{name: (split(patterns), bool(ignores_merges)) for name, (patterns, ignores_merges) in SPLITS.items()},
}


@pytest.fixture(scope="module")
def modules() -> torch_stack.Stack:
    return torch_stack.load()


@pytest.fixture
def make_model(modules, tmp_path) -> Callable[..., Path]:
    """Make a model of a family with random biases and norms, and an adapter without effect: B is 0."""

    def make(family: str) -> Path:
        folder = tiny_training.make_folder(modules, tmp_path / "tiny--model")
        text_family, whole = WITH_IMAGES.get(family, (family, ""))
        kind, changes = FAMILIES[text_family]
        base = json.loads((folder / "config.json").read_text())
        build_tokenizer(folder, [TEXT, __doc__ or ""])
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        config = getattr(modules.transformers, f"{kind}Config")(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            initializer_range=128**-0.5, max_position_embeddings=512, vocab_size=VOCABULARY,
            **{key: base.get(key) for key in keys},
            **changes,
        )  # fmt: skip
        if whole:
            parts = {"text_config": config.to_dict(), "vision_config": VISION, "tie_word_embeddings": False}
            config = modules.transformers.AutoConfig.for_model(family, **parts)
        modules.torch.manual_seed(3)
        model = getattr(modules.transformers, whole or f"{kind}ForCausalLM")(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += modules.torch.randn_like(parameter) * 0.1
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        model.to(modules.torch.bfloat16).save_pretrained(folder)
        return folder

    return make


def write_gguf(modules, model: Path, quantization: str = "gguf") -> Path:
    adapter = model.with_name("adapter")
    shutil.rmtree(adapter, ignore_errors=True)
    loaded = load_text_model(modules, str(model))
    modules.peft.get_peft_model(loaded, modules.peft.LoraConfig(r=4, target_modules=["q_proj"])).save_pretrained(
        adapter
    )
    out = model.with_name(quantization)
    merge.merge(
        merge.MergeRequest(model=str(model), adapter=str(adapter), out=str(out), format=quantization), lambda _: None
    )
    return llama_cpp.gguf_path(out)


@pytest.mark.parametrize("family", [*FAMILIES, *WITH_IMAGES])
def test_llama_cpp_computes_what_transformers_computes(modules, make_model, family) -> None:
    torch, folder = modules.torch, make_model(family)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer(TEXT * 2, add_special_tokens=False).input_ids
    model = load_text_model(modules, str(folder)).float()
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for quantization, bound in (("gguf", 0.002), ("gguf-q8_0", 0.02)):
        opened = LlamaCpp(write_gguf(modules, folder, quantization), tokenizer, torch, 512)
        computed = opened.logits(ids).log_softmax(-1)
        divergence = (expected.exp() * (expected - computed)).sum(-1).mean()
        assert 0 <= float(divergence) < bound


def test_llama_cpp_answers_and_reads_prompts_as_the_training(modules, make_model) -> None:
    folder = make_model("mistral")
    tokenizer = load_tokenizer(folder)
    opened = LlamaCpp(write_gguf(modules, folder), tokenizer, modules.torch, 256)
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    case = PromptCase(location="a:1", prompt=ids, reference=[tokenizer.eos_token_id])
    assert opened.count_split_prompts([case]) == 0
    ((_, has_ended),) = opened.answers([case])
    assert isinstance(has_ended, bool)


@pytest.fixture
def open_vocabulary(tmp_path) -> Callable[[int], Any]:
    """Open the tokenizer of `tmp_path` in llama.cpp, without a model."""

    def open_it(size: int) -> Any:
        read = read_gguf_tokenizer(tmp_path, size, [])
        config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": size, "max_position_embeddings": 64}  # fmt: skip
        path = tmp_path / "vocabulary.gguf"
        path.write_bytes(GgufFile(config, {}, read, "bf16", "vocabulary").header)
        return importlib.import_module("llama_cpp").Llama(model_path=str(path), vocab_only=True, verbose=False)

    return open_it


@pytest.mark.parametrize("rule", SPACE_RULES)
@pytest.mark.parametrize("version", MISTRAL_FILES)
def test_llama_cpp_splits_hostile_texts_as_mistrals_vocabularies(open_vocabulary, tmp_path, version, rule) -> None:
    opened = open_vocabulary(len(write_mistral_tokenizer(tmp_path, version, rule)))
    tokenizer = load_tokenizer(tmp_path)
    backend = tokenizer.backend_tokenizer
    for is_typed, start in ((False, tokenizer.bos_token), (True, " ")):  # typed control tokens are text
        backend.encode_special_tokens = is_typed
        for text in HOSTILE_TEXTS:
            text = text if rule == "every" else start + text
            expected = backend.encode(text, add_special_tokens=False).ids
            computed = opened.tokenize(text.encode(), add_bos=False, special=not is_typed)
            assert (text, computed) == (text, expected)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_llama_cpp_splits_hostile_texts_as_each_pre_tokenizer(open_vocabulary, tmp_path, name) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    build_tokenizer(tmp_path, [TEXT, __doc__ or ""])
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    document["pre_tokenizer"], document["model"]["ignore_merges"] = PRE_TOKENIZERS[name]
    path.write_text(json.dumps(document))
    compare(open_vocabulary(VOCABULARY), load_tokenizer(tmp_path))


def test_llama_cpp_splits_hostile_texts_as_tekken(open_vocabulary, tmp_path) -> None:
    opened = open_vocabulary(write_tekken_tokenizer(tmp_path))
    texts = [text for text in HOSTILE_TEXTS if not any(unicodedata.category(letter)[0] == "M" for letter in text)]
    assert len(texts) > len(HOSTILE_TEXTS) - 3
    compare(opened, load_tokenizer(tmp_path), texts)


def compare(opened: Any, tokenizer: Any, texts: Sequence[str] = (TEXT, *HOSTILE_TEXTS)) -> None:
    for text in texts:
        computed = opened.tokenize(text.encode(), add_bos=False, special=True)
        assert (text, computed) == (text, tokenizer(text, add_special_tokens=False).input_ids)
