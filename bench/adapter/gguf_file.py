"""GGUF, the one-file format of llama.cpp and Ollama: a merged model's metadata and tensors, in bf16 or in 8 bits.

Names of tensors and the layout of the header are those of the package gguf; what each family needs follows llama.cpp's
own converter. Families whose file llama.cpp was not seen to compute as transformers does are refused by name.

    bf16    matrices as merged                  vectors (norms, biases) in float32
    q8_0    matrices in blocks of 32 8-bit values with a common float16 scale

llama and mistral rotate neighbouring pairs of a head in llama.cpp and its two halves in transformers, so the rows of q
and k are stored in another order (`permute_heads`). Of a model that takes images too, the text model is written.
"""

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.adapter.gguf_tokenizer import BYTE_LEVEL, GgufTokenizer
from bench.architectures import Feature, find
from bench.architectures.architecture import Gguf
from bench.data.inputs import InputError

ALIGNMENT = 32  # bytes; the default of GGUF
Q8_BLOCK, Q8_BLOCK_BYTES = 32, 34
HEAD = "lm_head.weight"
OTHER_FORMAT = "omit --format"
ROTATION_KEYS = {
    "default": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        "llama_4_scaling_beta",
    ),
}
VERIFIED_FEATURES = {
    Feature.QKV_BIAS, Feature.QK_NORM, Feature.TIED_HEAD, Feature.SCALED_ROTATION, Feature.ATTENTION_DROPOUT,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor of the file. `source` is its name in the base; None for the rotation's factors."""

    name: str
    source: str | None
    shape: tuple[int, ...]
    type_name: str  # F32, BF16 or Q8_0
    bytes: int


class GgufFile:
    """Planned file: its size is known before a weight is read."""

    def __init__(
        self,
        config: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        tokenizer: GgufTokenizer,
        quantization: str,
        title: str,
    ) -> None:
        """Plan the file for a base of these tensors. Raises InputError."""
        if importlib.util.find_spec("gguf") is None:
            raise InputError(
                "the package gguf is not installed on the worker",
                remedy="pip install gguf; for pods, an image of the current lock: inv build push deploy",
            )
        self._gguf: Any = importlib.import_module("gguf")
        self._family, self._tokenizer = check_family(config), tokenizer
        self._architecture = find(config)
        text_config = self._architecture.text_config(config)
        self._geometry, self._rotation = self._architecture.geometry(config), read_rotation(text_config)
        self._epsilon = float(text_config.get("rms_norm_eps", 1e-6))
        self._quantization, self._title = quantization, title
        self.tensors = list(self._plan(shapes))
        self.header = self._encode_header()
        self.size = len(self.header) + sum(_padded(tensor.bytes) for tensor in self.tensors)

    def chunks(self, get_tensor: Callable[[str], Any], torch: Any) -> Iterator[Any]:
        """Yield the file's content. `get_tensor` returns a merged tensor of the base, in bf16."""
        yield self.header
        for tensor in self.tensors:
            content = self._encode(tensor, get_tensor, torch)
            if len(content) != tensor.bytes:
                raise ValueError(f"{tensor.name}: {len(content)} bytes, planned {tensor.bytes}")
            yield content
            yield bytes(_padded(tensor.bytes) - tensor.bytes)

    def _encode(self, tensor: GgufTensor, get_tensor: Callable[[str], Any], torch: Any) -> memoryview:
        if tensor.source is None:
            return memoryview(torch.tensor(self._rotation_factors()).view(torch.uint8).numpy()).cast("B")
        weight = get_tensor(tensor.source).to("cpu")
        if tuple(weight.shape) != tensor.shape:
            raise ValueError(f"{tensor.source}: {tuple(weight.shape)}, planned {tensor.shape}")
        if self._family.permutes_heads:
            if ".q_proj." in tensor.source:
                weight = permute_heads(weight, self._geometry.heads)
            elif ".k_proj." in tensor.source:
                weight = permute_heads(weight, self._geometry.key_heads)
        if tensor.type_name == "Q8_0":
            kind = self._gguf.GGMLQuantizationType.Q8_0
            return memoryview(self._gguf.quants.quantize(weight.float().numpy(), kind)).cast("B")
        weight = weight if tensor.type_name == "BF16" else weight.float()
        return memoryview(weight.contiguous().view(torch.uint8).numpy()).cast("B")

    def _plan(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[GgufTensor]:
        architecture = next(
            key for key, name in self._gguf.MODEL_ARCH_NAMES.items() if name == self._family.architecture
        )
        names = self._gguf.get_tensor_name_map(architecture, self._geometry.layers)
        if self._rotation["rope_type"] == "llama3":
            count = self._geometry.head_width // 2
            yield GgufTensor(name="rope_freqs.weight", source=None, shape=(count,), type_name="F32", bytes=4 * count)
        for source, shape in shapes.items():
            module = self._architecture.module_name(source)
            is_text = module != source or module == HEAD or not self._architecture.renames
            if not is_text or (module == HEAD and self._geometry.is_tied):
                continue
            name = names.get_name(module, try_suffixes=(".weight", ".bias"))
            if name is None:
                raise InputError(f"{source}: no such tensor in GGUF's architecture {self._family.architecture}")
            type_name, size = self._storage(shape)
            yield GgufTensor(name=name, source=source, shape=shape, type_name=type_name, bytes=size)

    def _storage(self, shape: tuple[int, ...]) -> tuple[str, int]:
        count = math.prod(shape)
        if len(shape) < 2:
            return "F32", 4 * count
        if self._quantization == "q8_0" and shape[-1] % Q8_BLOCK == 0:
            return "Q8_0", count // Q8_BLOCK * Q8_BLOCK_BYTES
        return "BF16", 2 * count

    def _rotation_factors(self) -> list[float]:
        """Compute by what Llama 3 divides each frequency."""
        rotation = self._rotation
        factor, low, high = (float(rotation[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        positions = float(rotation["original_max_position_embeddings"])
        factors = []
        for index in range(0, self._geometry.head_width, 2):
            wavelength = 2 * math.pi * float(rotation["rope_theta"]) ** (index / self._geometry.head_width)
            share = (positions / wavelength - low) / (high - low)
            share = min(max(share, 0.0), 1.0)
            factors.append(1 / ((1 - share) / factor + share))
        return factors

    def _encode_header(self) -> bytes:
        types = self._gguf.GGMLQuantizationType
        with TemporaryDirectory() as folder:
            path = Path(folder) / "header"
            writer = self._gguf.GGUFWriter(path, self._family.architecture)
            self._add_model(writer)
            self._add_tokenizer(writer)
            for tensor in self.tensors:
                # The dtype argument matters for raw bytes only, whose shape the writer would convert.
                writer.add_tensor_info(tensor.name, tensor.shape, None, tensor.bytes, types[tensor.type_name])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            writer.close()
            header = path.read_bytes()
        return header + bytes(_padded(len(header)) - len(header))

    def _add_model(self, writer: Any) -> None:
        geometry, is_q8 = self._geometry, self._quantization == "q8_0"
        file_types = self._gguf.LlamaFileType
        writer.add_type("model")
        writer.add_name(self._title)
        writer.add_file_type(file_types.MOSTLY_Q8_0 if is_q8 else file_types.MOSTLY_BF16)
        writer.add_quantization_version(self._gguf.GGML_QUANT_VERSION)
        writer.add_block_count(geometry.layers)
        writer.add_context_length(geometry.positions)
        writer.add_embedding_length(geometry.hidden)
        writer.add_feed_forward_length(geometry.inner)
        writer.add_head_count(geometry.heads)
        writer.add_head_count_kv(geometry.key_heads)
        writer.add_key_length(geometry.head_width)
        writer.add_value_length(geometry.head_width)
        writer.add_rope_dimension_count(geometry.head_width)
        writer.add_rope_freq_base(float(self._rotation["rope_theta"]))
        if self._rotation["rope_type"] == "yarn":
            self._add_yarn(writer)
        writer.add_layer_norm_rms_eps(self._epsilon)
        writer.add_vocab_size(geometry.vocabulary)

    def _add_yarn(self, writer: Any) -> None:
        rotation = {key: self._rotation[key] for key in ROTATION_KEYS["yarn"]}
        writer.add_rope_scaling_type(self._gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(float(rotation["factor"]))
        writer.add_rope_scaling_orig_ctx_len(int(rotation["original_max_position_embeddings"]))
        writer.add_rope_scaling_yarn_beta_fast(float(rotation["beta_fast"]))
        writer.add_rope_scaling_yarn_beta_slow(float(rotation["beta_slow"]))
        writer.add_rope_scaling_yarn_log_mul(float(rotation["mscale_all_dim"]))
        writer.add_attn_temperature_scale(float(rotation["llama_4_scaling_beta"]))

    def _add_tokenizer(self, writer: Any) -> None:
        tokenizer = self._tokenizer
        writer.add_tokenizer_model(tokenizer.model)
        writer.add_tokenizer_pre(tokenizer.pre)
        writer.add_token_list(tokenizer.tokens)
        writer.add_token_types(tokenizer.types)
        if tokenizer.model == BYTE_LEVEL:
            writer.add_token_merges(tokenizer.merges)
        else:
            writer.add_token_scores(tokenizer.scores)
            writer.add_add_space_prefix(tokenizer.adds_space_prefix)
        writer.add_add_bos_token(tokenizer.adds_bos)
        writer.add_add_eos_token(tokenizer.adds_eos)
        ends = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
        if len(tokenizer.ends) > len(ends):
            raise InputError(f"{len(tokenizer.ends)} tokens end an answer: GGUF names {len(ends)} at most")
        for add, token in zip(ends, tokenizer.ends, strict=False):
            add(token)
        optional = (
            (writer.add_bos_token_id, tokenizer.bos),
            (writer.add_unk_token_id, tokenizer.unknown),
            (writer.add_pad_token_id, tokenizer.padding),
            (writer.add_chat_template, tokenizer.template),
        )
        for add, value in optional:
            if value is not None:
                add(value)


def check_family(config: Mapping[str, Any]) -> Gguf:
    """Return the family in llama.cpp. Raises InputError for one that was not verified, and for what it cannot hold."""
    architecture = find(config)
    text_config = architecture.text_config(config)
    family = find(text_config).gguf
    if family is None:
        raise InputError(f"model_type: {config.get('model_type')}: not verified in GGUF", remedy=OTHER_FORMAT)
    _check_rotation(read_rotation(text_config), family)
    other = architecture.features(config).keys() - VERIFIED_FEATURES
    geometry = architecture.geometry(config)
    if geometry.window is not None and geometry.window >= geometry.positions:
        other.discard(Feature.SLIDING_WINDOW)
    if other:
        raise InputError(f"{min(feature.value for feature in other)}: not verified in GGUF", remedy=OTHER_FORMAT)
    return family


def read_rotation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotation's settings, `rope_type` and `rope_theta` among them, before and after transformers 5."""
    settings = config.get("rope_parameters") or config.get("rope_scaling")
    settings = settings if isinstance(settings, dict) else {}
    kind = settings.get("rope_type", settings.get("type", "default"))
    return {"rope_theta": config.get("rope_theta", 10000.0), **settings, "rope_type": kind}


def _check_rotation(rotation: Mapping[str, Any], family: Gguf) -> None:
    kind = rotation["rope_type"]
    if kind not in family.rotations or rotation.get("partial_rotary_factor", 1) != 1:
        raise InputError(f"rope_parameters: {kind}: not verified in GGUF", remedy=OTHER_FORMAT)
    for key in ("rope_theta", *ROTATION_KEYS[kind]):
        value = rotation.get(key)
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise InputError(f"rope_parameters: {key}: expected a number above 0, found {str(value)[:40]}")
    has_factor = rotation.get("mscale") != rotation.get("mscale_all_dim") or "attention_factor" in rotation
    if kind == "yarn" and (has_factor or not rotation.get("truncate", True)):
        raise InputError("rope_parameters: yarn with an attention factor: not verified in GGUF", remedy=OTHER_FORMAT)


def permute_heads(weight: Any, heads: int) -> Any:
    """Reorder the rows of each head from (half, pair) to (pair, half)."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
