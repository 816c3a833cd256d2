"""Base and adapter to one model folder in Hugging Face layout, tensor by tensor, with the base's own shards.

Beside the folder, under its name with a dot and `.part`, it grows: shard by shard, each noted in `shards.jsonl` after
it was read back. A merge that was stopped goes on there if its inputs are the same. The folder gets its name when
SHA256SUMS and merge.json are in it, so one that is there is whole.
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from bench import torch_stack
from bench.adapter import lora, safetensors_writer
from bench.adapter.base_check import check_base
from bench.data.inputs import InputError
from bench.data.model_folder import INDEX, check_model, config_of, weight_files
from bench.data.safetensors_header import read_shapes
from bench.data.tokenizer import load_tokenizer
from bench.records import schema
from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.paths import SUMS_FILE
from bench.records.training import MergeFacts
from bench.workloads.finetune.checkpoints.checkpoint import TOKENIZER_FILES

MERGE_FILE, SHARDS_FILE, LOCK_FILE, CARD_FILE = "merge.json", "shards.jsonl", "lock", "README.md"
GENERATION_FILE = "generation_config.json"
BASES = ("bf16", "nf4")
ROOM_BYTES = 32 << 20  # for tokenizer, index and card
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """What to merge, and where to. `card` is the text of README.md, `end_ids` are the tokens that end an answer."""

    model: str
    adapter: str
    out: str
    base: str = "bf16"
    model_sha256: str | None = None
    card: str = ""
    end_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise InputError(f"base: expected one of {', '.join(BASES)}, found {self.base!r}")


def merge(wish: MergeRequest, say: Callable[[str], None]) -> MergeFacts:
    """Make the folder, or go on with it, or verify it. Raises InputError, Refused and OSError."""
    model, adapter, out = Path(wish.model), Path(wish.adapter), Path(wish.out)
    check_base(model, adapter, wish.model_sha256)
    shards = shapes_of(model)
    found = lora.read(adapter, {name: shape for shapes in shards.values() for name, shape in shapes.items()})
    facts = MergeFacts(
        base=wish.base,
        model_sha256=check_model(model).sha256,
        adapter_sha256=found.sha256,
        end_ids=sorted({*wish.end_ids, *_ends(model)}),
        shards=len(shards),
        bytes=sum(safetensors_writer.size_of(shapes) for shapes in shards.values()),
    )
    if out.exists():
        return _verified(out, facts, say)
    part = out.with_name(f".{out.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    with _alone(part):
        done = _begun(part, facts)
        _require_room(part, sum(safetensors_writer.size_of(shards[name]) for name in shards if name not in done))
        _write_shards(part, model, shards, found, wish.base, done, say)
        _write_rest(part, model, adapter, shards, facts, wish.card)
        _seal(part)
        (part / SHARDS_FILE).unlink()
        (part / LOCK_FILE).unlink()
        os.rename(part, out)
    say(f"{out}: {facts.bytes / 1e9:.2f} GB in {facts.shards} shards, read back and verified")
    return facts


def shapes_of(model: Path) -> dict[str, Shapes]:
    """The shapes of a model's tensors, by its files of weights."""
    return {path.name: read_shapes(path) for path in weight_files(model)}


def _ends(model: Path) -> set[int]:
    """The tokens that end an answer by the model's own files."""
    ends = {load_tokenizer(model).eos_token_id}
    for document in (config_of(model), _generation(model)):
        given = document.get("eos_token_id")
        ends.update(given if isinstance(given, list) else [given])
    return {end for end in ends if type(end) is int}


def _generation(model: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((model / GENERATION_FILE).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    with (part / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{part}: another merge is writing there; let it finish") from None
        yield


def _begun(part: Path, facts: MergeFacts) -> dict[str, str]:
    """The sha256 of each shard that an earlier merge of the same inputs has written and that is still so."""
    plan, wanted = part / MERGE_FILE, schema.to_json(facts)
    try:
        is_same = json.loads(plan.read_bytes()) == wanted
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        for path in part.iterdir():
            if path.name != LOCK_FILE:
                path.unlink()
        write_atomic(plan, json.dumps(wanted, indent=1).encode() + b"\n")
        return {}
    done = {}
    with contextlib.suppress(OSError):
        for line in (part / SHARDS_FILE).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):  # a line that a crash has cut
                one = json.loads(line)
                if sha256_of(part / one["name"]) == one["sha256"]:
                    done[one["name"]] = one["sha256"]
    return done


def _require_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part).free
    if free < needed + ROOM_BYTES:
        raise InputError(
            f"{part.parent}: {free / 1e9:.2f} GB free, {(needed + ROOM_BYTES) / 1e9:.2f} GB needed; make room, or name "
            "a folder on another disk"
        )


def _write_shards(
    part: Path,
    model: Path,
    shards: Mapping[str, Shapes],
    found: lora.Lora,
    base: str,
    done: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    modules = torch_stack.load()
    device = "cuda" if modules.torch.cuda.is_available() else "cpu"
    merged = lora.MergedWeights(modules=modules, lora=found, base=base)
    for number, (name, shapes) in enumerate(shards.items(), 1):
        if name in done:
            say(f"shard {number} of {len(shards)}: {name} is there already, verified")
            continue
        with safe_open(model / name, "pt") as file, modules.torch.no_grad():
            made = partial(_one, file, device, merged)
            digest = safetensors_writer.write(part / name, shapes, made, modules.torch)
        with (part / SHARDS_FILE).open("a", encoding="utf-8") as notes:
            notes.write(json.dumps({"name": name, "sha256": digest}) + "\n")
            notes.flush()
            os.fsync(notes.fileno())
        say(f"shard {number} of {len(shards)}: {name}, {(part / name).stat().st_size / 1e6:,.1f} MB, read back")


def _one(file: Any, device: str, merged: lora.MergedWeights, name: str) -> Any:
    return merged(name, file.get_tensor(name).to(device))


def _write_rest(
    part: Path, model: Path, adapter: Path, shards: Mapping[str, Shapes], facts: MergeFacts, card: str
) -> None:
    """Everything beside the weights; tokenizer and template are those of the training."""
    config = config_of(model)
    config.pop("quantization_config", None)
    types = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    files = {"config.json": config | dict.fromkeys(types, "bfloat16")}
    files[GENERATION_FILE] = _generation(model) | {"eos_token_id": facts.end_ids}
    if len(shards) > 1:
        places = {name: place for place, shapes in shards.items() for name in shapes}
        count = sum(math.prod(shape) for shapes in shards.values() for shape in shapes.values())
        files[INDEX] = {"metadata": {"total_size": count * safetensors_writer.BYTES}, "weight_map": places}
    for name, document in files.items():
        write_atomic(part / name, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    for name in TOKENIZER_FILES:
        source = next((folder / name for folder in (adapter, model) if (folder / name).is_file()), None)
        if source is not None:
            write_atomic(part / name, source.read_bytes())
    write_atomic(part / CARD_FILE, card.encode())


def _seal(part: Path) -> None:
    names = sorted(path.name for path in part.iterdir() if path.name not in (SHARDS_FILE, LOCK_FILE, SUMS_FILE))
    lines = [f"{sha256_of(part / name)}  {name}\n" for name in names]
    write_atomic(part / SUMS_FILE, "".join(lines).encode())


def _verified(out: Path, facts: MergeFacts, say: Callable[[str], None]) -> MergeFacts:
    """A folder that is there must be this merge, whole. Raises InputError."""
    try:
        is_same = json.loads((out / MERGE_FILE).read_bytes()) == schema.to_json(facts)
        sums = [line.split("  ", 1) for line in (out / SUMS_FILE).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        is_same, sums = False, []
    if not is_same:
        raise InputError(f"{out}: holds something else than this merge; name another folder, or remove it")
    for digest, name in sums:
        if not (out / name).is_file() or sha256_of(out / name) != digest:
            raise InputError(f"{out / name}: not as {SUMS_FILE} says; remove {out} and merge again")
    say(f"{out}: is there already, verified")
    return facts
