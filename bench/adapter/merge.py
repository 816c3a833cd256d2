"""Merge of base and adapter into one model folder, tensor by tensor.

The folder has Hugging Face's layout and the base's shards; a tensor has the dtype in which the training held it, and
bf16 if that was NF4. Tensors that transformers joins or splits, as those of experts, are merged as the model has them,
then written as in the base's files if transformers knows the way back, else under the model's names.

Files are written to `.NAME.part` next to the target folder, and weights are read back. The folder is renamed to its
final name once it has SHA256SUMS and merge.json, so a folder of that name is complete. A stopped merge begins again.

A safetensors file is written with one tensor in memory at a time: its header follows from names and
shapes (format: `bench.data.model_folder`).
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import safe_open

from bench import torch_stack
from bench.adapter import lora
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import INDEX, TEMPLATE_FILE, WEIGHTS, read_config, read_shapes, weight_files
from bench.data.tokenizer import load_tokenizer
from bench.qlora.base_models import DTYPES, Skeleton, TensorGroup, read_base
from bench.records import schema
from bench.records.adapter import BASES, NF4, BaseRecord, MergeFacts
from bench.records.atomic_files import DISK_ERRNOS, sha256_of, write_atomic
from bench.records.paths import SUMS_FILE
from bench.records.sums_file import folder_fault
from bench.records.units import format_gb, format_mb
from bench.workloads.finetune.checkpoint import TOKENIZER_FILES

MERGE_FILE = "merge.json"
GENERATION_FILE = "generation_config.json"
SUFFIXES = frozenset({".jinja", ".json", ".model", ".tiktoken", ".txt"})  # files that inference reads
TEMPLATES_FOLDER = "additional_chat_templates"
OVERHEAD_BYTES = 32 << 20  # tokenizer and index
Headers: TypeAlias = dict[str, tuple[Any, tuple[int, ...]]]  # torch's dtype and the shape by tensor
HEADER_ALIGNMENT = 8
NAMES = {torch_name: name for name, torch_name in DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """Request to merge into the folder `out`. `end_ids` are the tokens that end an answer."""

    model: str
    adapter: str
    out: str
    base: str = "bf16"
    model_sha256: str | None = None
    end_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise InputError(f"base: expected one of {', '.join(BASES)}, found {self.base!r}")


def merge(request: MergeRequest, log: Callable[[str], None]) -> MergeFacts:
    """Create or verify the merged folder. Raises InputError, InputRejected and OSError."""
    model, adapter, out = Path(request.model), Path(request.adapter), Path(request.out)
    base = lora.check_base(model, adapter, request.model_sha256)
    adapter_weights, record = lora.read(adapter)
    source = MergedFiles(model, adapter_weights, record, request.base)
    shards = source.shards()
    facts = MergeFacts(
        base=request.base,
        model_sha256=base.sha256,
        adapter_sha256=adapter_weights.sha256,
        end_ids=sorted({*request.end_ids, *_end_tokens(model)}),
        shards=len(shards),
        bytes=sum(map(data_bytes, shards.values())),
    )
    if os.path.lexists(out):
        return _verify_existing(out, facts, log)
    part = out.with_name(f".{out.name}.part")
    with _empty_folder(part):
        free, needed = shutil.disk_usage(part).free, facts.bytes + OVERHEAD_BYTES
        if free < needed:
            raise InputError(
                f"{out.parent}: {format_gb(free, 2)} free, {format_gb(needed, 2)} needed",
                remedy="free some space, or name a folder on another disk",
            )
        torch = torch_stack.load().torch
        for number, (name, headers) in enumerate(shards.items(), 1):
            write_verified(part / name, tensor_chunks(headers, source.read, torch))
            log(f"shard {number} of {len(shards)}: {name}, {format_mb((part / name).stat().st_size)}, read back")
        _write_other_files(part, model, adapter, shards, facts.end_ids)
        write_atomic(part / MERGE_FILE, json.dumps(schema.to_json(facts), indent=1).encode() + b"\n")
        _write_checksums(part)
        os.rename(part, out)
    log(f"{out}: {format_gb(facts.bytes, 2)} in {facts.shards} shards, read back and verified")
    return facts


def _end_tokens(model: Path) -> set[int]:
    """Collect the tokens that end an answer according to the model's own files."""
    ends = {load_tokenizer(model).eos_token_id}
    for document in (read_config(model), _read_generation_config(model)):
        eos = document.get("eos_token_id")
        ends.update(eos if isinstance(eos, list) else [eos])
    return {end for end in ends if type(end) is int}


def _read_generation_config(model: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        document = json.loads((model / GENERATION_FILE).read_bytes())
        return document if isinstance(document, dict) else {}
    return {}


@contextlib.contextmanager
def _empty_folder(part: Path) -> Iterator[None]:
    """Hold the folder that the merge writes to, empty. Raises InputError, InputRejected if it is another user's."""
    try:
        part.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise
        raise InputError(f"{part}: {error.strerror}", remedy="name another folder") from error
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise InputRejected(f"{part}: another user may change it", remedy="name another folder")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in part.iterdir():  # a killed merge's
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        yield
    except BlockingIOError as error:
        raise InputError(f"{part}: another merge is writing to it", remedy="wait until it ends") from error
    finally:
        os.close(descriptor)


def _write_other_files(
    part: Path, model: Path, adapter: Path, shards: Mapping[str, Headers], end_ids: Sequence[int]
) -> None:
    """Write all other files that inference reads; tokenizer and template are those of the training."""
    config = json.loads((model / "config.json").read_bytes())
    config.pop("quantization_config", None)
    dtype_keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    files = {"config.json": config | dict.fromkeys(dtype_keys, "bfloat16")}
    files[GENERATION_FILE] = _read_generation_config(model) | {"eos_token_id": end_ids}
    if shards.keys() != {WEIGHTS}:
        weight_map = {name: shard for shard, headers in shards.items() for name in headers}
        total = sum(map(data_bytes, shards.values()))
        files[INDEX] = {"metadata": {"total_size": total}, "weight_map": weight_map}
    for name, document in files.items():
        write_atomic(part / name, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    for path in (*model.iterdir(), *(model / TEMPLATES_FOLDER).glob("*.jinja")):
        name = str(path.relative_to(model))
        if path.suffix in SUFFIXES and name not in (*files, INDEX) and path.is_file():
            (part / name).parent.mkdir(exist_ok=True)
            source = adapter / name if name in TOKENIZER_FILES and (adapter / name).is_file() else path
            write_atomic(part / name, source.read_bytes())
    if (adapter / TEMPLATE_FILE).is_file():  # the training's own, which the base may not have
        write_atomic(part / TEMPLATE_FILE, (adapter / TEMPLATE_FILE).read_bytes())


class MergedFiles:
    """Tensors of a merged model's files: what each is, and its content."""

    def __init__(self, model: Path, weights: lora.Lora, record: BaseRecord, base: str) -> None:
        """Raises InputError if transformers' model is not that of the training."""
        stack = torch_stack.load()
        self._torch = stack.torch
        self._device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._merged = lora.MergedWeights(modules=stack, record=record, lora=weights, base=base)
        is_nf4 = any(held.kind == NF4 for held in record.tensors.values())
        self._skeleton = Skeleton(stack, model, nf4=is_nf4)
        if read_base(self._skeleton.model).tensors.keys() != record.tensors.keys():
            raise InputError(f"{model}: transformers has other weights than in the training", remedy=lora.RESTORE_BASE)
        self._places = {name: path for path in weight_files(model) for name in read_shapes(path)}
        self._groups: dict[str, TensorGroup] = {}  # by name in the files
        self._ready: dict[str, Any] = {}  # the rest of groups of which a tensor was read

    def shards(self) -> dict[str, Headers]:
        """Return the headers by file: a group's tensors are where its first one is in the base."""
        shards: dict[str, Headers] = {path.name: {} for path in sorted(set(self._places.values()))}
        for group in self._skeleton.groups():
            sources = {name: self._empty(name) for name in group.sources}
            headers = shards[self._places[group.sources[0]].name]
            for name, tensor in self._make(group, sources).items():
                self._groups[name] = group
                dtype = self._merged.dtype(group.target) if group.target is not None else tensor.dtype
                headers[name] = dtype, tuple(tensor.shape)
        return {name: headers for name, headers in shards.items() if headers}

    def read(self, name: str) -> Any:
        """Read and merge a tensor. Raises InputError."""
        if name not in self._ready:
            group = self._groups[name]
            with self._torch.no_grad():
                sources = {source: self._load(source) for source in group.sources}
                self._ready |= self._make(group, sources, self._merged if group.target is not None else None)
        return self._ready.pop(name)

    def _make(
        self, group: TensorGroup, sources: dict[str, Any], change: Callable[[str, Any], Any] | None = None
    ) -> dict[str, Any]:
        tensors = self._skeleton.convert(group, sources)
        if change is not None:
            tensors = {name: change(name, tensor) for name, tensor in tensors.items()}
        return self._skeleton.revert(group, tensors)

    def _empty(self, name: str) -> Any:
        dtype, shape = self._skeleton.headers[name]
        return self._torch.empty(shape, dtype=getattr(self._torch, DTYPES[dtype]), device="meta")

    def _load(self, name: str) -> Any:
        with safe_open(self._places[name], "pt") as file:
            return file.get_tensor(name).to(self._device)


def _write_checksums(part: Path) -> None:
    names = sorted(str(path.relative_to(part)) for path in part.rglob("*") if path.is_file())
    lines = [f"{sha256_of(part / name)}  {name}\n" for name in names]
    write_atomic(part / SUMS_FILE, "".join(lines).encode())


def _verify_existing(out: Path, facts: MergeFacts, log: Callable[[str], None]) -> MergeFacts:
    """Check that an existing folder is this merge, complete. Raises InputError."""
    try:
        is_same = json.loads((out / MERGE_FILE).read_bytes()) == schema.to_json(facts)
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        raise InputError(f"{out}: exists and is not this merge", remedy="name another folder, or remove it")
    if (fault := folder_fault(out)) is not None:
        raise InputError(fault, remedy=f"remove {out} and retry")
    log(f"{out}: already exists, verified")
    return facts


def encode_header(headers: Headers) -> bytes:
    """Encode the header of a file with these tensors, in this order."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (dtype, shape) in headers.items():
        end = begin + math.prod(shape) * dtype.itemsize
        document[name] = {
            "dtype": NAMES[str(dtype).removeprefix("torch.")],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def data_bytes(headers: Headers) -> int:
    return sum(math.prod(shape) * dtype.itemsize for dtype, shape in headers.values())


def write_verified(path: Path, chunks: Iterable[Any]) -> None:
    """Write the file and read it back. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # Linux: read back what is on the disk, not in the page cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if sha256_of(path) != digest.hexdigest():
        raise OSError(errno.EIO, "data read back differs from the data written; check the disk", str(path))


def tensor_chunks(headers: Headers, get_tensor: Callable[[str], Any], torch: Any) -> Iterator[Any]:
    """Yield the content of a safetensors file, with one tensor in memory at a time."""
    yield encode_header(headers)
    for name, (dtype, shape) in headers.items():
        tensor = get_tensor(name).contiguous().to("cpu")
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{name}: {tuple(tensor.shape)} in {tensor.dtype}, planned {shape} in {dtype}")
        yield memoryview(tensor.reshape(-1).view(torch.uint8).numpy()).cast("B")
