"""Small model folder and data file, written in a millisecond without torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.harness.record import Clock, Record, Request
from bench.records import Trial
from tests.model_shapes import tensors

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


def write_weights(path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write a safetensors file of zeros in bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, size = end, 2
        for dimension in shape:
            size *= dimension
        end = begin + size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + bytes(end))


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes the key."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def write_model(folder: Path) -> Path:
    """Write a folder that passes every check: 2 layers of width 8."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    write_weights(folder / "model.safetensors", tensors(CONFIG))
    return folder


def write_data(path: Path) -> Path:
    """Write twenty valid lines."""
    path.write_text("".join(json.dumps(CHAT) + "\n" for _ in range(20)))
    return path


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "models" / 'it\'s a "model"')


@pytest.fixture
def sharded_folder(model_folder: Path) -> Path:
    """The model of `model_folder` in two weights files and their index."""
    (model_folder / "model.safetensors").unlink()
    expected = tensors(CONFIG)
    names = sorted(expected)
    weight_map = {}
    for number, part in enumerate((names[:7], names[7:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_weights(model_folder / file, {name: expected[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    (model_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return model_folder


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    return write_data(tmp_path / "chats.jsonl")


@pytest.fixture
def make_record(tmp_path: Path, make_trial: Callable[..., Trial]) -> Callable[..., Record]:
    """Function that makes the record of a trial with its result in `tmp_path`; keywords are fields of the request."""

    def make(trial: Trial | None = None, **fields: Any) -> Record:
        request = Request(**{"out": tmp_path} | fields)
        return Record(request, make_trial() if trial is None else trial, Clock())

    return make
