"""A model folder small enough to be made by hand in a millisecond, without torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "model_type": "mistral",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
TOKENIZER = {"model": {"vocab": {"<s>": 0, "</s>": 1, "a": 31}}, "added_tokens": [{"id": 0}, {"id": 1}]}
CHAT = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}


def shapes_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """The tensors of a Mistral of this configuration, as its weights file would name them."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    key = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": [hidden, hidden],
            f"{layer}.self_attn.k_proj.weight": [key, hidden],
            f"{layer}.self_attn.v_proj.weight": [key, hidden],
            f"{layer}.self_attn.o_proj.weight": [hidden, hidden],
            f"{layer}.mlp.gate_proj.weight": [inner, hidden],
            f"{layer}.mlp.up_proj.weight": [inner, hidden],
            f"{layer}.mlp.down_proj.weight": [hidden, inner],
        }
    return shapes | {"lm_head.weight": [config["vocab_size"], hidden]}


def write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file of zeros in bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, size = end, 2
        for side in shape:
            size *= side
        end = begin + size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(end))


@pytest.fixture
def write_safetensors() -> Callable[[Path, dict[str, list[int]]], None]:
    return write_weights


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A folder that passes every check: 2 layers of width 8."""
    folder = tmp_path / "models" / 'it\'s a "model"'
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    write_weights(folder / "model.safetensors", shapes_of(CONFIG))
    return folder


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Change keys of a JSON file; None removes the key."""

    def edit(path: Path, **changes: Any) -> None:
        document = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))

    return edit


@pytest.fixture
def sharded_folder(model_folder: Path) -> Path:
    """The same model in two weights files and their index."""
    (model_folder / "model.safetensors").unlink()
    shapes = shapes_of(CONFIG)
    names = sorted(shapes)
    placed = {}
    for number, part in enumerate((names[:7], names[7:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_weights(model_folder / file, {name: shapes[name] for name in part})
        placed |= dict.fromkeys(part, file)
    (model_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return model_folder


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Twenty good lines."""
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(CHAT) + "\n" for _ in range(20)))
    return path
