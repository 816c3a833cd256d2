"""Llama: attention with grouped keys, SwiGLU, RMSNorm, rotation."""

from bench.architectures.architecture import Architecture, LinearLayer, read_features, read_geometry, register

LINEAR_LAYERS = (
    LinearLayer("self_attn.q_proj", "qkv", ("query",)),
    LinearLayer("self_attn.k_proj", "qkv", ("key",)),
    LinearLayer("self_attn.v_proj", "qkv", ("key",)),
    LinearLayer("self_attn.o_proj", "out", ("hidden",)),
    LinearLayer("mlp.gate_proj", "gate_up", ("inner",)),
    LinearLayer("mlp.up_proj", "gate_up", ("inner",)),
    LinearLayer("mlp.down_proj", "down", ("hidden",)),
)
UNREAD = {"sliding_window": None}  # keys of config.json that the model does not read

ARCHITECTURE = Architecture(
    model_types=("llama",),
    linear_layers=LINEAR_LAYERS,
    geometry=lambda config: read_geometry({**config, **UNREAD}),
    features=lambda config: read_features({**config, **UNREAD}),
)
register(ARCHITECTURE)
