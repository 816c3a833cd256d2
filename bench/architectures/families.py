"""The registered architectures: one declaration for each family of models."""

from bench.architectures.architecture import Architecture, LinearLayer, read_features, read_geometry, register

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
LLAMA_UNREAD = {"sliding_window": None}  # keys of config.json that the model does not read
LLAMA = Architecture(
    model_types=("llama",),
    linear_layers=LLAMA_LAYERS,
    geometry=lambda config: read_geometry({**config, **LLAMA_UNREAD}),
    features=lambda config: read_features({**config, **LLAMA_UNREAD}),
)
register(LLAMA)

# Llama's block without biases, and with a sliding window.
MISTRAL_DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096}  # transformers' values for missing keys
MISTRAL_UNREAD = {"attention_bias": False, "mlp_bias": False}
MISTRAL = Architecture(
    model_types=("mistral",),
    linear_layers=LLAMA_LAYERS,
    geometry=lambda config: read_geometry({**MISTRAL_DEFAULTS, **config, **MISTRAL_UNREAD}),
    features=lambda config: read_features({**MISTRAL_DEFAULTS, **config, **MISTRAL_UNREAD}),
)
register(MISTRAL)
