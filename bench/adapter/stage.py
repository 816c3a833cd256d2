"""What a server's pod needs before its server starts: base and adapter, each compared by digest, at fixed places.

`inv serve` sends the adapter while this waits; on a shared volume it may be there already. A base on a volume is used
where it is; one that is in this image is copied, because the server's container has another image.
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

BASE, SERVED = "base", "adapter"  # in the folder `into`
_LOOK_SEC = 0.5


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """`volumes`: the folders that the server's container sees as well; `wait_sec`: how long the adapter may take."""

    model: str
    model_sha256: str | None
    adapter: str
    adapter_sha256: str
    into: str
    volumes: list[str]
    wait_sec: float = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServingLayout:
    """Where base and adapter are now."""

    base: str
    adapter: str


def stage_adapter(wish: StageRequest, say: Callable[[str], None]) -> ServingLayout:
    """Raises InputError, Refused for another base, template or adapter than the training's, and OSError."""
    model, adapter, into = Path(wish.model), Path(wish.adapter), Path(wish.into)
    check_model(model)  # what is wrong with it is said before anything is waited for
    _await(adapter / SUMS_FILE, wish.wait_sec, say)
    if sha256_of(adapter / ADAPTER) != wish.adapter_sha256:
        raise InputRejected(f"{adapter / ADAPTER}: its sha256 is not that of the training; remove the folder")
    check_base(model, adapter, wish.model_sha256)
    into.mkdir(parents=True, exist_ok=True)
    if any(model.is_relative_to(volume) for volume in wish.volumes):
        _link(into / BASE, model)
    elif not (into / BASE).is_dir():
        part = into / f".{BASE}.part"
        shutil.rmtree(part, ignore_errors=True)
        say(f"copying {model} for the server")
        shutil.copytree(model, part)
        part.rename(into / BASE)
    _link(into / SERVED, adapter)
    return ServingLayout(base=str(into / BASE), adapter=str(into / SERVED))


def _await(path: Path, within_sec: float, say: Callable[[str], None]) -> None:
    """Until the file is there, which is written last. Raises InputError."""
    until = time.monotonic() + within_sec
    if not path.exists():
        say(f"waiting for {path.parent}; `inv serve` sends it")
    while not path.exists():
        if time.monotonic() > until:
            raise InputError(f"{path.parent}: nobody has sent the adapter; type `inv serve` again")
        time.sleep(_LOOK_SEC)


def _link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)
