"""`inv adapter.push`: an adapter, or its merged model, into a folder, a registry or a bucket, verified."""

import base64
import datetime
import importlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from invoke.context import Context

from bench.records.atomic_files import sha256_of, write_atomic
from remote.image import artifact
from remote.image.registry import outcome_json
from remote.image.vm_agent.job import Failed
from remote.image.vm_agent.registry.api import Registry
from tasks.adapter import model_card
from tasks.adapter.artifact import TrainedAdapter, open_training, print_line
from tasks.clients.registry import named, user_of
from tasks.clients.secrets import registry_password
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError, writing
from tasks.settings.load import Settings, load

KIND = "application/vnd.qlora-fleet.{}.v1"
CARD_FILE, PUSH_FILE = "README.md", "adapter-push.json"
STORAGE = "tasks.oci.storage.push"  # imported when a bucket is named: without Oracle's SDK that import raises
KINDS = {
    "transient": RetryableError,
    "refused": ConfirmationRequired,
    **dict.fromkeys(("unauthorized", "forbidden", "absent", "usage"), UsageError),
}


def push_adapter(
    context: Context, run: str | None, *, folder: str | None, oci: str | None, bucket: str | None, merged: bool
) -> None:
    settings = load(context)
    if sum(one is not None for one in (folder, oci, bucket)) != 1:
        raise UsageError(
            "adapter.push: where to? name one of --folder=DIR, --oci=HOST/REPOSITORY:TAG and "
            "--bucket=oci://BUCKET@NAMESPACE/PREFIX"
        )
    if (oci or "").startswith("oci://"):
        raise UsageError(f"adapter.push: --oci: {oci}: that is a bucket; type: --bucket={oci}")
    trained = open_training(settings, run)
    with tempfile.TemporaryDirectory() as scratch:
        files = files_of(trained, Path(scratch), merged=merged)
        if folder is not None:
            into_folder(files, Path(folder))
        elif oci is not None:
            _into_registry(settings, trained, files, oci, "model" if merged else "adapter")
        elif bucket is not None:
            _into_bucket(settings, trained, files, bucket)


def files_of(trained: TrainedAdapter, scratch: Path, *, merged: bool) -> dict[str, Path]:
    """The files by the names that they get. Raises UsageError."""
    source = trained.adapter
    if merged:
        there = trained.merged()
        if there is None or not Path(there["path"]).is_dir():
            at = "" if there is None else f" (it is at {there['path']} on a worker)"
            raise UsageError(f"run {trained.run.run_id}: no merged model here{at}; `inv adapter.merge` makes it")
        source = Path(there["path"])
    files = {path.name: path for path in sorted(source.iterdir()) if path.is_file() and not path.is_symlink()}
    if CARD_FILE not in files:
        (scratch / CARD_FILE).write_text(model_card.written(trained, trained.check()), encoding="utf-8")
        files[CARD_FILE] = scratch / CARD_FILE
    return files


def into_folder(files: Mapping[str, Path], place: Path) -> None:
    """Copy the files, whole or not at all; a folder that is there must be empty. Raises a task's errors."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"adapter.push: --folder: {place}: is there and not empty; name another one")
    part = place.absolute().with_name(f".{place.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name, path in files.items():
            shutil.copyfile(path, part / name)
            if sha256_of(part / name) != sha256_of(path):
                raise ConfirmationRequired(
                    f"{part / name}: read back other bytes than were written; the disk cannot be trusted"
                )
        part.replace(place)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UsageError(f"adapter.push: --folder: {place}: {error.strerror}; make room, or name another one") from None
    print(f"{place}: {len(files)} files, read back and verified")


def _into_registry(settings: Settings, trained: TrainedAdapter, files: Mapping[str, Path], oci: str, what: str) -> None:
    where = named("adapter.push: --oci", oci, trained.run.run_id)
    user = user_of(settings, where.repository)
    again = f"inv adapter.push --run={trained.folder.name}{' --merged' if what == 'model' else ''} --oci={oci}"
    secret = registry_password(settings, user, where.host, again)
    login = base64.b64encode(f"{user}:{secret.reveal()}".encode()).decode()
    notes = {
        "org.opencontainers.image.title": f"{what} of run {trained.run.run_id}",
        "qlora-fleet.adapter-sha256": str(trained.record.adapter_sha256),
        "qlora-fleet.base-sha256": str(trained.model_sha256),
    }
    try:
        registry = Registry(where.host, where.path, login, settings.registry.token_hosts)
        facts = artifact.push(registry, where, files, KIND.format(what), notes, print_line)
    except Failed as failed:
        kind = KINDS.get(failed.kind, TaskFailed)
        more = f"; `{again}` goes on" if kind is RetryableError else ""
        raise kind(f"{failed}{more}") from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    path = _note(trained, outcome_json(where, facts, _now()))
    print(f"{where.repository}@{facts['digest']}: {len(files)} files, confirmed by the registry; wrote {path}")


def _into_bucket(settings: Settings, trained: TrainedAdapter, files: Mapping[str, Path], target: str) -> None:
    storage = importlib.import_module(STORAGE)
    try:
        facts = storage.push(settings, target, trained.run.run_id, files, print_line)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    path = _note(trained, json.dumps({**facts, "pushed_at": _now()}, indent=1, ensure_ascii=False) + "\n")
    print(f"{facts['place']}: {len(facts['sha256'])} files, confirmed by the service; wrote {path}")


def _note(trained: TrainedAdapter, text: str) -> Path:
    path = trained.folder / PUSH_FILE
    with writing(path):
        write_atomic(path, text.encode())
    return path


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
