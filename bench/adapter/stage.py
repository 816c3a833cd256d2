"""Staging for a server's pod: base and adapter, verified by digest, at fixed paths.

`inv serve` sends the adapter while this waits; on a shared volume it may exist already. A base on a volume is linked. A
base in this image is copied, because the server's container has another image.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.adapter.base_check import check_base
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model
from bench.records.atomic_files import sha256_of
from bench.records.paths import SUMS_FILE
from bench.workloads.finetune.checkpoints.checkpoint import ADAPTER

BASE_NAME, ADAPTER_NAME = "base", "adapter"  # in the folder `into`
_POLL_SEC = 0.5


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """Request to stage base and adapter in the folder `into`.

    `volumes` are the folders that the server's container mounts too, `wait_sec` the timeout for the adapter to arrive.
    """

    model: str
    model_sha256: str | None
    adapter: str
    adapter_sha256: str
    into: str
    volumes: list[str]
    wait_sec: float = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServingLayout:
    """Paths of the staged base and adapter."""

    base: str
    adapter: str


def stage_adapter(request: StageRequest, log: Callable[[str], None]) -> ServingLayout:
    """Wait for the adapter, verify and stage it with its base.

    Raises InputError, InputRejected if base, template or adapter are not those of the training, and OSError.
    """
    model, adapter, into = Path(request.model), Path(request.adapter), Path(request.into)
    check_model(model)  # report a bad model before waiting
    _wait_for_file(adapter / SUMS_FILE, request.wait_sec, log)
    if sha256_of(adapter / ADAPTER) != request.adapter_sha256:
        raise InputRejected(
            f"{adapter / ADAPTER}: sha256 differs from that of the training", remedy="remove the folder"
        )
    check_base(model, adapter, request.model_sha256)
    into.mkdir(parents=True, exist_ok=True)
    if any(model.is_relative_to(volume) for volume in request.volumes):
        _link(into / BASE_NAME, model)
    elif not (into / BASE_NAME).is_dir():
        part = into / f".{BASE_NAME}.part"
        shutil.rmtree(part, ignore_errors=True)
        log(f"copying {model} for the server")
        shutil.copytree(model, part)
        part.rename(into / BASE_NAME)
    _link(into / ADAPTER_NAME, adapter)
    return ServingLayout(base=str(into / BASE_NAME), adapter=str(into / ADAPTER_NAME))


def _wait_for_file(path: Path, timeout_sec: float, log: Callable[[str], None]) -> None:
    """Wait for the file that the sender writes last. Raises InputError after the timeout."""
    deadline = time.monotonic() + timeout_sec
    if not path.exists():
        log(f"waiting for {path.parent}; `inv serve` sends it")
    while not path.exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"{path.parent}: the adapter was not sent within {timeout_sec:g} s", remedy="rerun `inv serve`"
            )
        time.sleep(_POLL_SEC)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)
