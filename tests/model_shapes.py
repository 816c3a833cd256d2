"""Published model shapes, and a model folder of such a shape with random weights.

    python -m tests.model_shapes FOLDER [--shape qwen3-8b]   # mistral-7b: the stand-in of docs/performance.md, 14.5 GB

Speed and memory depend on shapes, not on values, so random weights are as good as the real ones. The tokenizer is the
demo's. Sizes and numbers of parameters are those of the publishers' config.json and model cards, typed here; those of
ministral-3-8b are also transformers' defaults of its model type.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bench.architectures import Feature, find
from bench.architectures.architecture import BLOCKS
from bench.data import demo
from bench.data.model_folder import INDEX
from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A published model: its number of parameters without vision, and its config.json."""

    parameters: int
    config: dict[str, Any]


def _shape(parameters: int, model_type: str, sizes: Sequence[int], **settings: Any) -> Shape:
    """Make a shape of (hidden, inner, layers, heads, key heads, head width, vocabulary, positions)."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    known = {"model_type": model_type, "tie_word_embeddings": False, "sliding_window": None, "dtype": "bfloat16"}
    return Shape(parameters=parameters, config={**known, **dict(zip(keys, sizes, strict=True)), **settings})


def _rotation(theta: float, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **settings}}


YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHAPES = {
    "mistral-7b": Shape(
        parameters=7_248_023_552,
        config={
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 32768,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
    ),
    "llama-3.1-8b": _shape(
        8_030_261_248, "llama", (4096, 14336, 32, 32, 8, 128, 128256, 131072), **_rotation(500000.0, **LLAMA3)
    ),
    "ministral-3-8b": _shape(
        8_489_553_920, "ministral3", (4096, 14336, 34, 32, 8, 128, 131072, 262144), **_rotation(1000000.0, **YARN)
    ),
    "qwen2.5-7b": _shape(
        7_615_616_512, "qwen2", (3584, 18944, 28, 28, 4, 128, 152064, 32768), **_rotation(1000000.0)
    ),
    "qwen3-8b": _shape(8_190_735_360, "qwen3", (4096, 12288, 36, 32, 8, 128, 151936, 40960), **_rotation(1000000.0)),
    "smollm2-135m": _shape(
        134_515_008, "llama", (576, 1536, 30, 9, 3, 64, 49152, 8192), **_rotation(100000.0), tie_word_embeddings=True
    ),
    "phi-4": _shape(
        14_659_507_200, "phi3", (5120, 17920, 40, 40, 10, 128, 100352, 16384), **_rotation(250000.0),
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    ),
    "gemma-2-9b": _shape(
        9_241_705_984, "gemma2", (3584, 14336, 42, 16, 8, 256, 256000, 8192), tie_word_embeddings=True,
        sliding_window=4096,
    ),
    "gemma-3-4b": _shape(
        3_880_263_168, "gemma3_text", (2560, 10240, 34, 8, 4, 256, 262208, 131072), tie_word_embeddings=True,
        sliding_window=1024,
    ),
}  # fmt: skip
MISTRAL_7B = SHAPES["mistral-7b"].config
TENSORS_PER_SHARD = 36  # four layers, 1.7 GB


def tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """List the tensors of a model of this configuration, by their names in weights files. Not Gemma's further norms."""
    architecture = find(config)
    geometry, features = architecture.geometry(config), architecture.features(config)
    listed: dict[str, tuple[int, ...]] = {}
    for block in (f"{BLOCKS}.{index}" for index in range(geometry.layers)):
        listed |= {f"{block}.{name}layernorm.weight": (geometry.hidden,) for name in ("input_", "post_attention_")}
        for layer in architecture.linear_layers:
            columns, rows = layer.shape(geometry)
            listed[f"{block}.{layer.path}.weight"] = (rows, columns)
            if layer.product == "qkv" and Feature.QKV_BIAS in features:
                listed[f"{block}.{layer.path}.bias"] = (rows,)
        if Feature.QK_NORM in features:
            listed |= {f"{block}.self_attn.{name}_norm.weight": (geometry.head_width,) for name in "qk"}
    table = geometry.vocabulary, geometry.hidden
    head = {} if geometry.is_tied else {"lm_head.weight": table}
    return {**listed, "model.norm.weight": (geometry.hidden,), "model.embed_tokens.weight": table, **head}


def write(folder: Path, config: Mapping[str, Any] = MISTRAL_7B) -> None:
    """Write random bf16 weights of `config` and SHA256SUMS into `folder`, which already contains a tokenizer.

    Four shards are written at a time, each made on the GPU if there is one: 14.5 GB in well under a minute.
    """
    import torch
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def tensor(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        return (torch.randn(shape, dtype=torch.bfloat16, device=device) * 0.02).cpu()

    def write_shard(number: int, part: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, str]]:
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file({name: tensor(shape) for name, shape in part}, folder / file, metadata={"format": "pt"})
        return ((name, file) for name, _ in part)

    torch.manual_seed(0)
    listed = list(tensors(config).items())
    parts = [listed[start : start + TENSORS_PER_SHARD] for start in range(0, len(listed), TENSORS_PER_SHARD)]
    (folder / "config.json").write_text(json.dumps(config))
    with ThreadPoolExecutor(4) as pool:
        weight_map = dict(chain.from_iterable(pool.map(write_shard, range(1, len(parts) + 1), parts)))
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        files = sorted(path for path in folder.iterdir() if path.is_file())
        lines = [f"{digest}  {path.name}\n" for digest, path in zip(pool.map(sha256_of, files), files, strict=True)]
    (folder / SUMS_FILE).write_text("".join(lines))
    if device == "cuda":
        torch.cuda.empty_cache()  # leave the whole GPU to the trials' processes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.model_shapes", description="Make a model of random weights.")
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    parser.add_argument(
        "--shape", choices=[name for name in SHAPES if not name.startswith("gemma")], default="mistral-7b"
    )
    arguments = parser.parse_args(argv)
    folder, shape = arguments.folder, SHAPES[arguments.shape]
    if folder.exists():
        parser.error(f"{folder}: already exists")
    folder.mkdir(parents=True)
    demo.build_tokenizer(folder, [text for pair in demo.documentation_pairs() for text in pair])
    write(folder, shape.config)
    print(f"made {folder}: {shape.parameters:,} random parameters")


if __name__ == "__main__":
    main()
