"""The registered architectures: one declaration for each family of models."""

from bench.architectures.architecture import (
    ATTENTION_PRODUCTS,
    Architecture,
    Config,
    ConfigError,
    Feature,
    LinearLayer,
    find,
    is_registered,
    read_geometry,
    register,
)

LLAMA_LAYERS = (
    LinearLayer("self_attn.q_proj", "qkv", ("query",)),
    LinearLayer("self_attn.k_proj", "qkv", ("key",)),
    LinearLayer("self_attn.v_proj", "qkv", ("key",)),
    LinearLayer("self_attn.o_proj", "out", ("hidden",)),
    LinearLayer("mlp.gate_proj", "gate_up", ("inner",)),
    LinearLayer("mlp.up_proj", "gate_up", ("inner",)),
    LinearLayer("mlp.down_proj", "down", ("hidden",)),
)

# Attention with grouped keys, SwiGLU, RMSNorm, rotation.
LLAMA = register(
    Architecture(
        model_types=("llama",),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: {**config, "sliding_window": None},
    )
)

# Llama's block without biases, and with a sliding window.
MISTRAL_DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096}  # transformers' values for missing keys
WITHOUT_BIAS = {"attention_bias": False, "mlp_bias": False}  # keys of config.json that the model does not read
MISTRAL = register(
    Architecture(
        model_types=("mistral",),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: {**MISTRAL_DEFAULTS, **config, **WITHOUT_BIAS},
    )
)

# Mistral's block with a query factor that is 1 below the positions of the original context.
MINISTRAL3_DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": None,
    "rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1},
}


def _with_ministral3_defaults(config: Config) -> Config:
    settings = {key: value for key, value in config.items() if key != "rope_parameters" or value is not None}
    return {**MINISTRAL3_DEFAULTS, **settings, **WITHOUT_BIAS}


def _ministral3_plain_positions(config: Config) -> int | None:
    rotation = _with_ministral3_defaults(config)["rope_parameters"]
    if not isinstance(rotation, dict) or not rotation.get("llama_4_scaling_beta"):
        return None
    positions = rotation.get("original_max_position_embeddings")
    return positions if isinstance(positions, int) and positions > 0 else 0


register(
    Architecture(
        model_types=("ministral3",),
        linear_layers=LLAMA_LAYERS,
        settings=_with_ministral3_defaults,
        plain_positions=_ministral3_plain_positions,
        liger_type="mistral",  # the same norms, MLP and head
    )
)

QWEN_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096}
QWEN_MAX_WINDOW_LAYERS = 28


def _local_layers(config: Config) -> tuple[bool, ...]:
    """Return whether each layer has Qwen's sliding window. Raises ConfigError for an unusable number of layers."""
    layers = read_geometry({**config, "sliding_window": None}).layers
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return (False,) * layers
    if isinstance(kinds := config.get("layer_types"), list):
        return tuple(kind == "sliding_attention" for kind in kinds)
    first = config.get("max_window_layers", QWEN_MAX_WINDOW_LAYERS)
    return tuple(index >= first for index in range(layers)) if isinstance(first, int) else (False,) * layers


def _with_window(config: Config) -> Config:
    """Return the config with a window only if all layers have it."""
    return config if all(_local_layers(config)) else {**config, "sliding_window": None}


def _window_feature(config: Config) -> dict[Feature, str]:
    local = _local_layers({**QWEN_DEFAULTS, **config})
    return {Feature.OTHER: "a sliding window in some layers only"} if any(local) and not all(local) else {}


# Llama's block with biases on q, k and v.
register(
    Architecture(
        model_types=("qwen2",),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: _with_window({**QWEN_DEFAULTS, **config, **WITHOUT_BIAS}),
        own_features=lambda config: {Feature.QKV_BIAS: "a bias on q, k and v", **_window_feature(config)},
    )
)

# Llama's block with a norm of each head of q and k before the rotation.
register(
    Architecture(
        model_types=("qwen3",),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: _with_window({**QWEN_DEFAULTS, "head_dim": 128, **config, "mlp_bias": False}),
        own_features=lambda config: {Feature.QK_NORM: "a norm on q and k", **_window_feature(config)},
    )
)

# Attention of the above before a mixture of experts, or an MLP in some layers, which the model's own module computes.
ATTENTION_LAYERS = tuple(layer for layer in LLAMA_LAYERS if layer.product in ATTENTION_PRODUCTS)
KNOWN_BY_MLP = {"hidden_act": "silu", "mlp_bias": False}  # the module computes it, whatever it is


def _router_noise(config: Config) -> dict[Feature, str]:
    return {Feature.OTHER: "noise in the inputs of experts"} if config.get("router_jitter_noise") else {}


def _with_used_window(config: Config) -> Config:
    known = {"num_key_value_heads": 4, "sliding_window": 4096, **config}
    return known if known.get("use_sliding_window") else {**known, "sliding_window": None}


register(
    Architecture(
        model_types=("mixtral",),
        linear_layers=ATTENTION_LAYERS,
        settings=lambda config: {"num_key_value_heads": 8, **config, **WITHOUT_BIAS, **KNOWN_BY_MLP},
        own_features=_router_noise,
    )
)
register(
    Architecture(
        model_types=("qwen3_moe",),
        linear_layers=ATTENTION_LAYERS,
        settings=lambda config: {**_with_used_window(config), **KNOWN_BY_MLP},
        own_features=lambda _: {Feature.QK_NORM: "a norm on q and k"},
    )
)

# GeGLU, norms before and after, (1 + w) norms, scaled embeddings, and local layers between global ones.
GEMMA_DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
}
GEMMA3_DEFAULTS = {
    **GEMMA_DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}
GEMMA_UNREAD = {"mlp_bias": False, "sliding_window": None}
GEMMA_FEATURES = {Feature.OTHER: "Gemma's norms, embeddings and local layers"}
register(
    Architecture(
        model_types=("gemma2",),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: {**GEMMA_DEFAULTS, **config, **GEMMA_UNREAD},
        own_features=lambda _: GEMMA_FEATURES,
    )
)
register(
    Architecture(
        model_types=("gemma3_text",),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: {**GEMMA3_DEFAULTS, **config, **GEMMA_UNREAD},
        own_features=lambda _: {Feature.QK_NORM: "a norm on q and k", **GEMMA_FEATURES},
    )
)

# Text models inside of models that also take images: their config is a key of config.json, their weights have a prefix.
TEXT_RENAMES = ((r"^language_model\.", ""), (r"^model\.language_model\.", "model."))


def _text_config(config: Config) -> Config:
    """Return the text model's config. Raises ConfigError if it is not one of a registered architecture."""
    text = config.get("text_config")
    if not isinstance(text, dict) or not is_registered(text) or find(text) is TEXT_PART:
        raise ConfigError("text_config", "the config of a known text model", text)
    tied = "tie_word_embeddings"  # the outer config decides
    return {**text, tied: config[tied]} if tied in config else text


TEXT_PART = register(
    Architecture(
        model_types=("mistral3", "gemma3"),
        linear_layers=LLAMA_LAYERS,
        settings=lambda config: find(text := _text_config(config)).settings(text),
        own_features=lambda config: find(text := _text_config(config)).own_features(text),
        plain_positions=lambda config: find(text := _text_config(config)).plain_positions(text),
        renames=TEXT_RENAMES,
        text_config=_text_config,
    )
)

# Llama's block with q, k, v joined and gate, up joined.
PHI3_LAYERS = (
    LinearLayer("self_attn.qkv_proj", "qkv", ("query", "key", "key")),
    LinearLayer("self_attn.o_proj", "out", ("hidden",)),
    LinearLayer("mlp.gate_up_proj", "gate_up", ("inner", "inner")),
    LinearLayer("mlp.down_proj", "down", ("hidden",)),
)


def _phi3_features(config: Config) -> dict[Feature, str]:
    rotation = config.get("rope_parameters") or config.get("rope_scaling")
    share = (rotation if isinstance(rotation, dict) else {}).get("partial_rotary_factor")
    share = share if share is not None else config.get("partial_rotary_factor", 1.0)
    if share != 1.0:
        return {Feature.OTHER: "rotation of a part of each head"}
    has_dropout = config.get("resid_pdrop") or config.get("embd_pdrop")
    return {Feature.OTHER: "dropout outside attention"} if has_dropout else {}


register(
    Architecture(
        model_types=("phi3",),
        linear_layers=PHI3_LAYERS,
        settings=lambda config: {**config, **WITHOUT_BIAS, "head_dim": None},
        own_features=_phi3_features,
    )
)
