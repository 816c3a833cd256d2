"""Check of a model folder in milliseconds, before torch is imported.

Every error is an InputError of one line: the file, the key, the expected value, and what to do. Shapes and sizes come
from the safetensors headers; weights are read only to hash them, and only without a SHA256SUMS.

Not covered: whether the weights' values are the published ones. SHA256SUMS, written by the downloader, covers that.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from bench.architectures import Separation, find
from bench.architectures.architecture import (
    BLOCKS,
    LAYER_SIZES,
    PRODUCT_INPUTS,
    Architecture,
    ConfigError,
    Geometry,
    is_registered,
)
from bench.architectures.unregistered import describe
from bench.data.inputs import InputError, ModelFacts
from bench.records.atomic_files import CHUNK_BYTES, sha256_of
from bench.records.paths import DEMO_INPUTS, NODE_NAME_VARIABLE, SUMS_FILE
from bench.records.schema import type_name
from bench.records.sums_file import read_sums

# Formats that can run code when they are read: rejected anywhere in the folder.
PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"})
TEMPLATE_FILE, PROCESSOR_FILE = "chat_template.jinja", "chat_template.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    TEMPLATE_FILE,
    PROCESSOR_FILE,
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Hashing this much takes 0.1 s; for larger files the sum in SHA256SUMS is trusted and the size is checked.
ALWAYS_HASHED_BYTES = 64 << 20
PACKING_TRANSFORMERS = (4, 54)  # the first version whose masks follow from positions that restart
Shapes = dict[str, tuple[int, ...]]  # by tensor name
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LAYER = re.compile(rf"{re.escape(BLOCKS)}\.(\d{{1,6}})\.")


def check_model(folder: Path) -> ModelFacts:
    """Check the folder and return its facts. Raises InputError."""
    if not folder.is_dir():
        is_pod = NODE_NAME_VARIABLE in os.environ
        remedy = "copy it to the pods' volume, or set model.path" if is_pod else "`inv model.demo` makes a small one"
        if not is_pod and HUB_NAME.fullmatch(name := str(folder)) and not folder.parent.exists():
            target = f"{DEMO_INPUTS[False][0].partition('/')[0]}/{name.replace('/', '--')}"
            remedy = f"`inv model.fetch --here --model={name}` brings it from the hub, then pass --model={target}"
        raise InputError(f"{folder}: no such model folder", remedy=remedy)
    try:
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in PICKLE_SUFFIXES and path.is_file():
                raise InputError(
                    f"{path}: a pickle file, which can run code when it is read",
                    remedy="remove it, only safetensors are used",
                )
        config, files = _read_object(folder / "config.json"), dict(_read_weights(folder))
        shapes = {name: shape for file_shapes in files.values() for name, shape in file_shapes.items()}
        config = config if is_registered(config) else describe(config, shapes)
        architecture, geometry = _check_architecture(folder / "config.json", config)
        if is_registered(config):
            shapes = {architecture.module_name(name): shape for name, shape in shapes.items()}
            _check_shapes(folder, architecture, geometry, shapes)
        elif not architecture.linear_layers:
            raise InputError(
                f"{folder}: model_type {config['model_type']}: no linear layer in its decoder blocks",
                remedy="use a causal language model",
            )
        _check_head(folder, config, geometry, files)
        _check_tokenizer(folder, geometry.vocabulary)
        optional = (name for name in (INDEX, *TOKENIZER_FILES) if (folder / name).is_file())
        names = sorted({"config.json", *files, *optional})
        return ModelFacts(
            sha256=_digest(folder, names),
            parameters=sum(math.prod(shape) for file_shapes in files.values() for shape in file_shapes.values()),
            bytes=sum((folder / name).stat().st_size for name in names),
            max_position_embeddings=geometry.positions,
        )
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a checked folder, with the linear layers of an architecture that is not registered."""
    config = _read_object(folder / "config.json")
    if is_registered(config):
        return config
    return describe(config, {name: shape for path in weight_files(folder) for name, shape in read_shapes(path).items()})


def read_separation(folder: Path) -> Separation:
    """Read how the installed transformers' model of a checked folder keeps the samples of a micro-batch apart."""
    config = _read_object(folder / "config.json")
    separation = find(config).separation(config)
    version = tuple(int(part) for part in metadata.version("transformers").split(".")[:2])
    return replace(separation, is_packed=separation.is_packed and version >= PACKING_TRANSFORMERS)


def end_tokens(folder: Path) -> frozenset[int]:
    """Return the tokens at which a model ends an answer, from its config.json; none without one."""
    ends = _read_object(folder / "config.json").get("eos_token_id") if (folder / "config.json").is_file() else None
    return frozenset(end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """List the weights files of a checked folder: the only file, or those in its index."""
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    return tuple(folder / name for name in sorted(set(_read_object(folder / INDEX)["weight_map"].values())))


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: missing", remedy="the folder must contain a complete model in Hugging Face layout")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: invalid JSON, truncated or damaged", remedy="fetch or make the model again"
        ) from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object, found {type_name(document)}")
    return document


def is_mxfp4(config: dict[str, Any]) -> bool:
    """Return whether the files hold experts in MXFP4, which loading dequantizes."""
    quantization = config.get("quantization_config")
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def _check_architecture(path: Path, config: dict[str, Any]) -> tuple[Architecture, Geometry]:
    if config.get("quantization_config") is not None and not is_mxfp4(config):
        raise InputError(
            f"{path}: quantization_config: the weights are quantized already, but a trial quantizes them itself",
            remedy="name the folder of the 16-bit original",
        )
    try:
        architecture = find(config)
        return architecture, architecture.geometry(config)
    except ConfigError as error:
        raise InputError(f"{path}: {error}") from error


def _read_weights(folder: Path) -> Iterator[tuple[str, Shapes]]:
    tensors_by_file: dict[str, list[str]] = {WEIGHTS: []}
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        weight_map = _read_object(folder / INDEX).get("weight_map")
        if (
            not isinstance(weight_map, dict)
            or not weight_map
            or not all(isinstance(name, str) for name in weight_map.values())
        ):
            raise InputError(f"{folder / INDEX}: weight_map: expected an object that maps every tensor to a file")
        tensors_by_file = {}
        for tensor, file in weight_map.items():
            tensors_by_file.setdefault(file, []).append(tensor)
    for name, tensors in sorted(tensors_by_file.items()):
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise InputError(f"{path}: missing", remedy="the folder must contain the weights as safetensors")
        shapes = read_shapes(path)
        for tensor in tensors:
            if tensor not in shapes:
                raise InputError(
                    f"{path}: {tensor}: missing, but {INDEX} lists it", remedy="fetch or make the model again"
                )
        yield name, shapes


def _check_shapes(folder: Path, architecture: Architecture, geometry: Geometry, shapes: Shapes) -> None:
    config_file = folder / "config.json"
    deepest = max((int(match[1]) for name in shapes if (match := _LAYER.match(name))), default=0)
    # At most one layer more than exist: the first missing one is enough, and config.json may name a billion.
    for name, expected, keys in _expected_shapes(architecture, geometry, min(geometry.layers, deepest + 2)):
        actual = shapes.get(name)
        if actual is None:
            raise InputError(f"{folder}: {name}: missing in the weights, but required by config.json ({keys})")
        if actual != expected:
            raise InputError(
                f"{config_file}: {keys}: expected {name} of shape {list(expected)}, the weights have {list(actual)}"
            )
    if deepest >= geometry.layers:
        raise InputError(f"{config_file}: num_hidden_layers: {geometry.layers}, but the weights have {deepest + 1}")


def _expected_shapes(
    architecture: Architecture, geometry: Geometry, depth: int
) -> Iterator[tuple[str, tuple[int, int], str]]:
    """Yield each matrix of a model of `depth` layers: its name, its shape and the keys that determine it."""
    table = geometry.vocabulary, geometry.hidden
    yield "model.embed_tokens.weight", table, "vocab_size, hidden_size"
    if not geometry.is_tied:
        yield "lm_head.weight", table, "vocab_size, hidden_size"
    for index in range(depth):
        for layer in architecture.linear_layers:
            columns, rows = layer.shape(geometry)
            keys = ", ".join(
                LAYER_SIZES[size] for size in dict.fromkeys((*layer.outputs, PRODUCT_INPUTS[layer.product]))
            )
            yield f"{BLOCKS}.{index}.{layer.path}.weight", (rows, columns), f"num_hidden_layers, {keys}"


def _check_head(folder: Path, config: dict[str, Any], geometry: Geometry, files: dict[str, Shapes]) -> None:
    """Raise InputError if config and weights contradict each other about a head of its own: readers would differ."""
    size = geometry.vocabulary, geometry.hidden
    tables = [
        (folder / file, name)
        for file, shapes in files.items()
        for name, shape in shapes.items()
        if shape == size and not re.search(r"\.\d+\.", name)
    ]
    says = f"{folder / 'config.json'}: tie_word_embeddings is {str(geometry.is_tied).lower()}"
    if geometry.is_tied and len(tables) > 1 and len({_hash_tensor(*table) for table in tables}) > 1:
        raise InputError(
            f"{says}, but in the weights {' and '.join(sorted(name for _, name in tables))} differ",
            remedy=f'write "tie_word_embeddings": false there, and its new sha256 into a {SUMS_FILE}',
        )
    if config.get("tie_word_embeddings") is False and len(tables) == 1:
        raise InputError(f"{says}, but the weights have only {tables[0][1]}", remedy="fetch or make the model again")


def _hash_tensor(path: Path, name: str) -> str:
    """Hash a tensor's type and data."""
    with path.open("rb") as file:
        entry = json.loads(file.read(length := int.from_bytes(file.read(8), "little")))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + length + begin)
        digest = hashlib.sha256(entry["dtype"].encode())
        while begin < end and (chunk := file.read(min(CHUNK_BYTES, end - begin))):
            digest.update(chunk)
            begin += len(chunk)
    return digest.hexdigest()


def _check_tokenizer(folder: Path, vocabulary: int) -> None:
    path = folder / "tokenizer.json"
    document = _read_object(path)
    model = document.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, (dict, list)) or not vocab:
        raise InputError(f"{path}: model.vocab: missing", remedy="not a tokenizer in the tokenizers library's format")
    ids = [len(vocab) - 1] if isinstance(vocab, list) else [value for value in vocab.values() if type(value) is int]
    added = document.get("added_tokens")
    entries = added if isinstance(added, list) else []
    ids += [entry["id"] for entry in entries if isinstance(entry, dict) and type(entry.get("id")) is int]
    if max(ids, default=0) >= vocabulary:
        raise InputError(
            f"{path}: contains token {max(ids)}, but config.json's vocab_size is {vocabulary}",
            remedy="restore the tokenizer of this model",
        )
    _read_tokenizer_settings(folder)


def _read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return _read_object(path) if path.is_file() else {}


def check_template(folder: Path) -> None:
    """Raise InputError for a checked folder without a chat template that its tokenizer finds."""
    path, template = folder / TEMPLATE_FILE, _read_tokenizer_settings(folder).get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    text = template.get("default") if isinstance(template, dict) else template
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else text
    text = processor_template(folder) if text is None and not template else text
    if isinstance(text, str) and text.strip():
        return
    names = ", ".join(map(str, template))[:80] if isinstance(template, dict) else ""
    only = f", only templates named {names}, which tokenizers do not use by default" if names else ""
    raise InputError(
        f"{folder}: no chat template (tokenizer_config.json: chat_template, {TEMPLATE_FILE} or {PROCESSOR_FILE}){only}",
        remedy="use the instruction-tuned model, or set train.chat_template for a training",
    )


def processor_template(folder: Path) -> str | None:
    """Return the chat template of a processor's file, which tokenizers do not read; None without one."""
    path = folder / PROCESSOR_FILE
    template = _read_object(path).get("chat_template") if path.is_file() else None
    return template if isinstance(template, str) else None


def _digest(folder: Path, names: list[str]) -> str:
    """Hash the sorted lines `sha256  name` of these files: equal with and without SHA256SUMS."""
    try:
        listed = read_sums(folder) if (folder / SUMS_FILE).is_file() else {}
    except ValueError as error:
        raise InputError(f"{folder / SUMS_FILE}: {error}") from error
    combined = hashlib.sha256()
    for name in names:
        path = folder / name
        if listed and name not in listed:
            raise InputError(f"{folder / SUMS_FILE}: does not list {name}", remedy="fetch or make the model again")
        digest = listed.get(name, "")
        if not digest or path.stat().st_size <= ALWAYS_HASHED_BYTES:
            digest = sha256_of(path)
        if digest != listed.get(name, digest):
            raise InputError(
                f"{path}: differs from {SUMS_FILE}: changed or damaged", remedy="fetch or make the model again"
            )
        combined.update(f"{digest}  {name}\n".encode())
    return combined.hexdigest()


def read_shapes(path: Path) -> Shapes:
    """Read the shapes by tensor name from a safetensors header, checked against the file's size. Raises InputError."""
    return {name: shape for name, (_, shape) in read_headers(path).items()}


def read_headers(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Read safetensors' name of the dtype, and the shape, of each tensor. Raises InputError."""
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
            return {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    except SafetensorError as error:
        raise InputError(
            f"{path}: truncated, damaged, or not a safetensors file: {error}", remedy="fetch or make the model again"
        ) from error
