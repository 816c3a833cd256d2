"""Staging for a server's pod: base and adapter, or a merged model, verified by digest, at fixed paths.

`inv serve` sends the adapter or the merged model while this waits; on a shared volume it may exist already. A base on a
volume is linked. A base in this image is copied, because the server's container has another image.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.adapter.lora import check_base
from bench.adapter.merge import MERGE_FILE, verify_sums
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model, read_shapes, weight_files
from bench.records import schema
from bench.records.adapter import BaseRecord, MergeFacts
from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from bench.workloads.finetune.checkpoint import ADAPTER

BASE_NAME, ADAPTER_NAME = "base", "adapter"  # in the folder `into`
TEXT_PART = "language_model."  # in the names of tensors of models that take images too
_POLL_SEC = 0.5


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """Request to stage a model in the folder `into`: the base and its adapter, or without `adapter` a merged model.

    The digests are those of the training's base and adapter. `volumes` are the folders that the server's container
    mounts too, `wait_sec` the timeout for adapter or merged model to arrive.
    """

    model: str
    model_sha256: str | None
    adapter: str | None
    adapter_sha256: str
    into: str
    volumes: list[str]
    wait_sec: float = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServingLayout:
    """Paths of the staged base and adapter; `base` is the merged model if there is no adapter."""

    base: str
    adapter: str | None


def stage_adapter(request: StageRequest, log: Callable[[str], None]) -> ServingLayout:
    """Wait for adapter or merged model, verify and stage it.

    Raises InputError, InputRejected if base, template, adapter or merged model are not those of the training, and
    OSError.
    """
    model, into = Path(request.model), Path(request.into)
    if request.adapter is None:
        _wait_for_file(model / SUMS_FILE, request.wait_sec, log)
        _check_merged(model, request)
    else:
        adapter = Path(request.adapter)
        check_model(model)  # report a bad model before waiting
        _wait_for_file(adapter / SUMS_FILE, request.wait_sec, log)
        verify_sums(adapter)
        if sha256_of(adapter / ADAPTER) != request.adapter_sha256:
            raise InputRejected(
                f"{adapter / ADAPTER}: sha256 differs from that of the training", remedy="remove the folder"
            )
        check_base(model, adapter, request.model_sha256)
        _check_names(model, adapter)
    into.mkdir(parents=True, exist_ok=True)
    if any(model.is_relative_to(volume) for volume in request.volumes):
        _link(into / BASE_NAME, model)
    elif not (into / BASE_NAME).is_dir():
        part = into / f".{BASE_NAME}.part"
        shutil.rmtree(part, ignore_errors=True)
        log(f"copying {model} for the server")
        shutil.copytree(model, part)
        part.rename(into / BASE_NAME)
    if request.adapter is None:
        return ServingLayout(base=str(into / BASE_NAME), adapter=None)
    _link(into / ADAPTER_NAME, Path(request.adapter))
    return ServingLayout(base=str(into / BASE_NAME), adapter=str(into / ADAPTER_NAME))


def _check_names(model: Path, adapter: Path) -> None:
    """Raise InputError for an adapter whose layers have longer names in the base's files: a server looks for these."""
    suffixes = tuple(
        f".{name.removeprefix('model.')}.weight" for name in BaseRecord.read(adapter / BaseRecord.FILE).adapters
    )
    names = (name for path in weight_files(model) for name in read_shapes(path))
    if any(TEXT_PART in name and name.endswith(suffixes) for name in names):
        raise InputError(
            f"{model}: takes images too, and the adapter is of its text part only, which the server does not find",
            remedy="inv adapter.merge, then inv serve --merged",
        )


def _check_merged(folder: Path, request: StageRequest) -> None:
    """Check that the folder is whole and was merged from this base and adapter. Raises InputError, InputRejected."""
    verify_sums(folder)
    check_model(folder)
    try:
        facts = schema.from_json(MergeFacts, schema.parse((folder / MERGE_FILE).read_bytes()))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / MERGE_FILE}: cannot be read", remedy="merge again: inv adapter.merge") from error
    for name in ("adapter_sha256", "model_sha256"):
        if getattr(request, name) not in (None, getattr(facts, name)):
            raise InputRejected(
                f"{folder}: not the merged model of the training: its {name} differs", remedy="merge it again"
            )


def _wait_for_file(path: Path, timeout_sec: float, log: Callable[[str], None]) -> None:
    """Wait for the file that the sender writes last. Raises InputError after the timeout."""
    deadline = time.monotonic() + timeout_sec
    if not path.exists():
        log(f"waiting for {path.parent}; `inv serve` sends what is on this machine")
    while not path.exists():
        if time.monotonic() > deadline:
            raise InputError(f"{path}: missing after {timeout_sec:g} s", remedy="rerun `inv serve`")
        time.sleep(_POLL_SEC)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)
