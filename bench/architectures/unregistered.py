"""Architectures of model types that are not registered, from the shapes in their weights files.

Recipes `reference` and `stock` train them: transformers and peft know their arithmetic, which is not described here.
Linear layers are the weights of two dimensions of the decoder blocks. If blocks differ or have other weights, adapters
are on attention only. Memory and FLOP follow from the record of the base (`bench.qlora.step.sized_config`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from bench.architectures.architecture import (
    COMMON_NAMES,
    MAX_COUNT,
    Architecture,
    Config,
    Feature,
    LinearLayer,
    set_fallback,
)

FOUND_LAYERS = "found_linear_layers"  # key that `describe` adds to a config
BASE_RECORD = "base_record"  # key that `bench.qlora.step.sized_config` adds: how the base is held in NF4
HAS_LOGITS = "has_logits"  # another: whether Liger has no loss for this type, so that `stock` has all logits in memory
ALIASES = {
    "hidden_size": ("n_embd", "d_model", "word_embed_proj_dim"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
}
OUT_NAMES = frozenset({"o_proj", "out_proj", "c_proj", "dense", "wo", "o"})
ATTENTION_NAMES = (".q_proj", ".k_proj", ".v_proj", ".o_proj")
DOWN_NAMES = frozenset({"down_proj", "c_proj", "fc2", "fc_out", "dense_4h_to_h", "w2", "wo"})
CHOICES = re.compile(r"num_experts_per_tok(en)?|moe_(top)?k|top_k_experts")
# Types whose model in transformers separates packed samples: test_packing.py shows it for each (THOROUGH=1).
PACKED_TYPES = (
    "apertus arcee aria_text axk1 beam bitnet codegen cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 "
    "diffllama dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo flint gemma glm glm4 glm4_moe glm4_moe_lite "
    "gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gptj granite granite_swa granitemoe granitemoe_swa "
    "granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe "
    "kolibri1 laguna mellum mimo_v2_flash minicpm3 minimax_m2 ministral modernbert-decoder nanochat "
    "nemotron olmo olmo2 olmo3 olmoe persimmon phi phimoe qwen2_moe seed_oss smollm3 solar_open stablelm "
    "starcoder2 vaultgemma youtu"
)
_BLOCK_WEIGHT = re.compile(r"(?P<blocks>.+?)\.(?P<index>\d{1,6})\.(?P<path>.+)\.weight")


def describe(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the config with the linear layers that the weights files have in every block, by their path there."""
    groups: dict[str, dict[int, dict[str, tuple[int, ...]]]] = defaultdict(lambda: defaultdict(dict))
    for name, shape in shapes.items():
        if (match := _BLOCK_WEIGHT.fullmatch(name)) and len(shape) > 1:
            groups[match["blocks"]][int(match["index"])][match["path"]] = shape
    by_index = max(groups.values(), key=len, default=groups[""])
    kinds = {frozenset(weights.items()) for weights in by_index.values()}
    weights = frozenset[tuple[str, tuple[int, ...]]]().union(*kinds)
    matrices = {path for path, shape in weights if len(shape) == 2 and not re.search(r"\.\d+\.", f".{path}.")}
    layers = sorted(matrices)
    if len(kinds) > 1 or len(matrices) < len(weights):
        others = {_last(path) for path, _ in weights if not is_in_attention(path)}
        # Peft would take a name for those of the others, too.
        layers = [path for path in layers if is_in_attention(path) and _last(path) not in others]
    known = {key: value for key, value in config.items() if value is not None}
    return {"num_hidden_layers": len(by_index), **known, FOUND_LAYERS: layers}


def experts_of_a_token(config: Config) -> int:
    """Read how many experts a token has from config.json; 1 if it does not say."""
    return next((config[name] for name in config if CHOICES.fullmatch(name) and type(config[name]) is int), 1)


def make(config: Config) -> Architecture:
    """Make the architecture of a config; without `describe` it has no linear layers."""
    names = Counter(map(_last, paths := config.get(FOUND_LAYERS, [])))
    return Architecture(
        model_types=(str(config["model_type"]),),
        linear_layers=tuple(_make_layer(path, names) for path in paths),
        settings=_settings,
        own_features=lambda known: {Feature.OTHER: f"model type {known['model_type']}, which is not a known family"},
        is_packed=config["model_type"] in PACKED_TYPES.split(),
        sees_padding=config["model_type"] in ("cpmant", "doge", "prophetnet"),
    )


def _make_layer(path: str, names: Mapping[str, int]) -> LinearLayer:
    name = _last(path)
    if is_in_attention(path):
        product = "out" if name in OUT_NAMES else "qkv"
    else:
        product = "down" if name in DOWN_NAMES else "gate_up"
    outputs = {"qkv": ("query",), "out": ("hidden",), "gate_up": ("inner",), "down": ("hidden",)}[product]
    return LinearLayer(path, product, outputs, parts=COMMON_NAMES[product], name_parts=min(2, names[name]))


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def is_in_attention(path: str) -> bool:
    """Return whether a module is of attention, by its path."""
    return "attn" in path or "attention" in path or path.endswith(ATTENTION_NAMES)


def _settings(config: Config) -> Config:
    known = {"max_position_embeddings": MAX_COUNT, **config}
    for key, names in ALIASES.items():
        values = [config[name] for name in (key, *names) if config.get(name) is not None]
        if values:
            known[key] = values[0][0] if isinstance(values[0], list) and values[0] else values[0]
    known["sliding_window"] = known.get("sliding_window") or None
    hidden, heads = known.get("hidden_size"), known.get("num_attention_heads")
    if isinstance(hidden, int):
        known.setdefault("intermediate_size", 4 * hidden)
        if isinstance(heads, int) and 0 < heads < hidden:
            known.setdefault("head_dim", hidden // heads)
    return known


set_fallback(make)
