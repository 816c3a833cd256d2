"""Declaration of a model architecture, the keys that families share, and the registry. Only the standard library.

A decoder block has four products, each of one or several linear layers with a common input:

    qkv      hidden -> query, key, key        gate_up  hidden -> inner, inner
    out      query -> hidden                  down     inner -> hidden

A family whose MLP the model's own module computes, as of a mixture of experts, declares the first two only. Layers that
a family joins (one `qkv_proj`) are one element of `linear_layers` with three outputs. A family registers
itself when it is imported; a second registration fails then.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, TypeAlias

Config: TypeAlias = Mapping[str, Any]  # the content of config.json
BLOCKS = "model.layers"  # the path of the decoder blocks in a model, and in the names of its weights
PRODUCT_INPUTS = {"qkv": "hidden", "out": "query", "gate_up": "hidden", "down": "inner"}
# The sizes of a linear layer's inputs and outputs, with the keys of config.json that determine them.
LAYER_SIZES = {
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "query": "num_attention_heads, head_dim",
    "key": "num_key_value_heads, head_dim",
}
ATTENTION_PRODUCTS = ("qkv", "out")
# Names by which settings and records select layers of any family: one for each output of a product's layers.
COMMON_NAMES = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
MAX_COUNT = 1 << 31  # largest accepted count in config.json


class ConfigError(ValueError):
    """Unusable value of a key of config.json."""

    def __init__(self, key: str, expected: str, value: object) -> None:
        super().__init__(f"{key}: expected {expected}, found {_format(value, quote=True)}")


def _format(value: object, *, quote: bool = False) -> str:
    """Return a short text for a value of config.json; lists and objects may be too deep to print."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return value[:80] if isinstance(value, str) and not quote else json.dumps(value, default=str)[:80]


class UnknownLayer(ValueError):
    """Name of a linear layer that the architecture does not have; `name` is that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no linear layer {name}")
        self.name = name


class Feature(str, Enum):
    """Parts of an architecture that code with the arithmetic written out must support, or refuse by name."""

    QKV_BIAS = "biases on q, k and v"
    OTHER_BIAS = "biases on other linear layers"
    QK_NORM = "norms on q and k"
    OTHER_ACTIVATION = "an activation other than SwiGLU"
    ATTENTION_DROPOUT = "dropout inside attention"
    SCALED_ROTATION = "scaled rotation"
    SLIDING_WINDOW = "sliding window"
    TIED_HEAD = "tied head"
    OTHER = "other arithmetic"


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of a model. `window` is the number of positions that a query attends to, None for all.

    `positions` is the longest sequence; `is_tied` is true if the head's weight is the embedding's.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    positions: int
    window: int | None
    is_tied: bool

    @property
    def query(self) -> int:
        return self.heads * self.head_width

    @property
    def key(self) -> int:
        return self.key_heads * self.head_width


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer of a decoder block: its path there, its product, and its outputs as sizes of `Geometry`.

    `parts` are the common names that select it together; by default as many as it has outputs.
    """

    path: str
    product: str
    outputs: tuple[str, ...]
    parts: tuple[str, ...] = ()
    name_parts: int = 1

    @property
    def name(self) -> str:
        """Its name as a target of LoRA: the last part of the path, or as many as tell it from the others."""
        return ".".join(self.path.split(".")[-self.name_parts :])

    def shape(self, geometry: Geometry) -> tuple[int, int]:
        """Return (input features, output features)."""
        return getattr(geometry, PRODUCT_INPUTS[self.product]), sum(getattr(geometry, name) for name in self.outputs)


@dataclass(frozen=True, kw_only=True)
class Separation:
    """Rules by which a micro-batch keeps samples apart.

    With `is_packed` they are end to end in one row, by positions that restart with each; without, each has a row of its
    own. Samples of up to `short` tokens and longer ones share no micro-batch: the longest one decides which factors
    LongRoPE uses for all. Of samples longer than `padded` only equally long ones do: the model selects so many
    positions of a row, padding included. By default any samples do.
    """

    is_packed: bool = True
    short: int | None = None
    padded: float = math.inf

    def group(self, length: int) -> tuple[bool, int]:
        """Return what samples have in common with which one of so many tokens may share a micro-batch."""
        return self.short is not None and length > self.short, length if length > self.padded else 0


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family of models with the same decoder block.

    `settings` returns config.json as transformers' class reads it: with its defaults, without keys that it ignores.
    `own_features` are those beyond the keys that all families share. `plain_positions` returns the number of positions
    for which `features` is complete, None for all. `renames` are patterns of names in weights files with their
    replacements in the text model, for files that hold more than it, and `text_config` returns its config.
    `is_packed` is true if transformers' model is known to separate samples by their positions, `sees_padding` if
    padding changes them. `liger_type` is the model type whose patch by Liger fits, if it has none for its own.
    """

    model_types: tuple[str, ...]
    linear_layers: tuple[LinearLayer, ...]
    settings: Callable[[Config], Config]
    own_features: Callable[[Config], Mapping[Feature, str]] = lambda _: {}
    plain_positions: Callable[[Config], int | None] = lambda _: None
    renames: tuple[tuple[str, str], ...] = ()
    text_config: Callable[[Config], Config] = lambda config: config
    is_packed: bool = True
    sees_padding: bool = False
    liger_type: str | None = None

    def geometry(self, config: Config) -> Geometry:
        """Read the sizes of a model. Raises ConfigError."""
        return read_geometry(self.settings(config))

    def features(self, config: Config) -> dict[Feature, str]:
        """Map each feature of a model to its description. Raises ConfigError."""
        common = _describe(self.settings(config))
        return {**self.own_features(config), **{feature: text for feature, text in common if text}}

    def product(self, name: str) -> tuple[LinearLayer, ...]:
        """Return the linear layers of a product, in the order of its outputs."""
        return tuple(layer for layer in self.linear_layers if layer.product == name)

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the linear layers that `names` selects. Raises UnknownLayer.

        A layer is selected by its own name, or by the common names of all its outputs.
        """
        wanted, used, selected = dict.fromkeys(names), set(), []
        for product, common in COMMON_NAMES.items():
            outputs = iter(common)
            for layer in self.product(product):
                parts = layer.parts or tuple(islice(outputs, len(layer.outputs)))
                if layer.name in wanted or wanted.keys() >= set(parts):
                    selected.append(layer.name)
                    used |= {layer.name, *parts} if wanted.keys() >= set(parts) else {layer.name}
        if unknown := [name for name in wanted if name not in used]:
            raise UnknownLayer(unknown[0])
        return tuple(dict.fromkeys(selected))

    def modules(self, block: Any, product: str) -> tuple[Any, ...]:
        """Return the modules of a product in a decoder block."""
        return tuple(operator.attrgetter(layer.path)(block) for layer in self.product(product))

    def shapes(self, config: Config) -> dict[str, tuple[int, int]]:
        """Map each linear layer of a block to (input features, output features)."""
        geometry = self.geometry(config)
        return {layer.name: layer.shape(geometry) for layer in self.linear_layers}

    def unsupported_feature(self, config: Config, supported: Container[Feature], positions: int) -> str | None:
        """Return the description of the first feature that is not in `supported`, for sequences of that many positions.

        None if all are.
        """
        plain = self.plain_positions(config)
        if plain is not None and positions > plain:
            return f"queries scaled from position {plain} on"
        descriptions = (text for feature, text in self.features(config).items() if feature not in supported)
        return next(descriptions, None)

    def separation(self, config: Config) -> Separation:
        """Return how the samples of a micro-batch are kept apart."""
        config = self.text_config(config)
        rotation = _rotation(config)
        short = config.get("original_max_position_embeddings", rotation.get("original_max_position_embeddings"))
        padded = 0 if self.sees_padding else config.get("index_topk", math.inf)
        return Separation(is_packed=self.is_packed, short=short if "long_factor" in rotation else None, padded=padded)

    def module_name(self, name: str) -> str:
        """Return the name in the text model of a tensor in the weights files."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


_BY_MODEL_TYPE: dict[str, Architecture] = {}
_FALLBACK: list[Callable[[Config], Architecture]] = []


def register(architecture: Architecture) -> Architecture:
    """Add an architecture and return it. Raises ValueError if one of its model types has one."""
    for model_type in architecture.model_types:
        if model_type in _BY_MODEL_TYPE:
            raise ValueError(f"architecture {model_type}: registered twice")
    _BY_MODEL_TYPE.update(dict.fromkeys(architecture.model_types, architecture))
    return architecture


def set_fallback(make: Callable[[Config], Architecture]) -> None:
    """Let `find` call `make` for model types that are not registered."""
    _FALLBACK[:] = [make]


def is_registered(config: Config) -> bool:
    """Return whether the model type of config.json is registered."""
    model_type = config.get("model_type")
    return isinstance(model_type, str) and model_type in _BY_MODEL_TYPE


def has_all_weights(config: Config) -> bool:
    """Return whether a model's architecture declares all weights of its blocks, from which predictions compute."""
    return is_registered(config) and bool(find(config).product("down"))


def find(config: Config) -> Architecture:
    """Return the architecture of a model, registered or made for it. Raises ConfigError without a model type."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError("model_type", f"a model type, such as {', '.join(sorted(_BY_MODEL_TYPE))}", model_type)
    return _BY_MODEL_TYPE[model_type] if model_type in _BY_MODEL_TYPE else _FALLBACK[0](config)


def read_geometry(config: Config) -> Geometry:
    """Read the keys that most families share. Raises ConfigError."""
    hidden, heads = _get_count(config, "hidden_size"), _get_count(config, "num_attention_heads")
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError("hidden_size", f"a multiple of the {heads} num_attention_heads", hidden)
    key_heads = _get_count(config, "num_key_value_heads", heads)
    if heads % key_heads:
        raise ConfigError("num_key_value_heads", f"a divisor of the {heads} num_attention_heads", key_heads)
    return Geometry(
        hidden=hidden,
        inner=_get_count(config, "intermediate_size"),
        layers=_get_count(config, "num_hidden_layers"),
        heads=heads,
        key_heads=key_heads,
        head_width=_get_count(config, "head_dim", hidden // heads),
        vocabulary=_get_count(config, "vocab_size"),
        positions=_get_count(config, "max_position_embeddings"),
        window=None if config.get("sliding_window") is None else _get_count(config, "sliding_window"),
        is_tied=bool(config.get("tie_word_embeddings", False)),
    )


def _get_count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise ConfigError(key, "a whole number above 0", value)
    return value


def _rotation(config: Config) -> Config:
    rotation = config.get("rope_parameters") or config.get("rope_scaling")
    return rotation if isinstance(rotation, dict) else {}


def _describe(config: Config) -> Iterator[tuple[Feature, str | None]]:
    """Yield the features that most families set by the same keys; a description is None if a model has none."""
    has_attention_bias, has_mlp_bias = config.get("attention_bias"), config.get("mlp_bias")
    yield Feature.QKV_BIAS, "a bias on q, k and v" if has_attention_bias else None
    yield Feature.OTHER_BIAS, "a bias on the output of attention" if has_attention_bias else None
    yield Feature.OTHER_BIAS, "a bias in the MLP" if has_mlp_bias else None
    activation = config.get("hidden_act") or "silu"
    if activation != "silu":
        name = _format(activation)
        yield Feature.OTHER_ACTIVATION, f"activation {name}, not silu"
    dropout = config.get("attention_dropout")
    yield Feature.ATTENTION_DROPOUT, f"dropout of {_format(dropout)} inside attention" if dropout else None
    rotation = _rotation(config)
    kind = rotation.get("rope_type") or rotation.get("type") or "default"
    yield Feature.SCALED_ROTATION, f"rotation scaled by {_format(kind)}" if kind != "default" else None
    window = config.get("sliding_window")
    yield Feature.SLIDING_WINDOW, f"a sliding window of {_format(window)}" if window else None
    yield Feature.TIED_HEAD, "a tied head" if config.get("tie_word_embeddings") else None
