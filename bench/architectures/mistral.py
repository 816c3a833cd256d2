"""Mistral: Llama's block without biases, and with a sliding window."""

from bench.architectures.architecture import Architecture, read_features, read_geometry, register
from bench.architectures.llama import LINEAR_LAYERS

DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096}  # transformers' values for missing keys
UNREAD = {"attention_bias": False, "mlp_bias": False}  # keys of config.json that the model does not read

ARCHITECTURE = Architecture(
    model_types=("mistral",),
    linear_layers=LINEAR_LAYERS,
    geometry=lambda config: read_geometry({**DEFAULTS, **config, **UNREAD}),
    features=lambda config: read_features({**DEFAULTS, **config, **UNREAD}),
)
register(ARCHITECTURE)
