"""Shape of Mistral-7B-Instruct-v0.3, and a model folder of that shape with random weights.

    python -m tests.mistral_7b FOLDER     # 14.5 GB: the stand-in of docs/measurements.md and docs/performance.md

Speed and memory depend on shapes, not on values, so random weights are as good as the real ones. The tokenizer is the
demo's.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from bench.data import demo
from bench.data.model_folder import INDEX
from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE

CONFIG: dict[str, Any] = {
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
}
PARAMETERS = 7_248_023_552
TENSORS_PER_SHARD = 36  # four layers, 1.7 GB


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """List the tensors of a Mistral of this configuration, by their names in weights files."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    query, key = heads * width, config["num_key_value_heads"] * width
    tensors: dict[str, tuple[int, ...]] = {}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        tensors |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (query, hidden),
            f"{layer}.self_attn.k_proj.weight": (key, hidden),
            f"{layer}.self_attn.v_proj.weight": (key, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, query),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    vocabulary = config["vocab_size"]
    ends = {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden)}
    return {**tensors, "model.norm.weight": (hidden,), **ends}


def write(folder: Path, config: Mapping[str, Any] = CONFIG) -> None:
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
    tensors = list(shapes(config).items())
    parts = [tensors[start : start + TENSORS_PER_SHARD] for start in range(0, len(tensors), TENSORS_PER_SHARD)]
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
    parser = argparse.ArgumentParser(prog="python -m tests.mistral_7b", description="Make the 7B stand-in.")
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    folder: Path = parser.parse_args(argv).folder
    if folder.exists():
        parser.error(f"{folder}: already exists")
    folder.mkdir(parents=True)
    demo.build_tokenizer(folder, [text for pair in demo.documentation_pairs() for text in pair])
    write(folder)
    print(f"made {folder}: {PARAMETERS:,} random parameters")


if __name__ == "__main__":
    main()
