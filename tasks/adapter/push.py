"""`inv adapter.push`: push an adapter, or its merged model, to a folder, a registry or a bucket, and verify it."""

import base64
import datetime
import importlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from invoke.context import Context

from bench.records.atomic_files import DISK_ERRNOS, sha256_of, write_atomic
from bench.records.scratch_folders import scratch_folder
from bench.records.sums_file import folder_fault
from bench.records.units import format_size
from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.registry_api import Registry
from remote.image import artifact
from remote.image.references import push_record_json
from remote.providers import PROVIDERS
from reports import formatting
from tasks.adapter.artifact import TrainedAdapter, open_training, print_line
from tasks.adapter.merge import render_card
from tasks.cli.answer import Answer, plan_answer
from tasks.cli.flags import format_command
from tasks.clients.registry import configured_user, parse_reference
from tasks.clients.secrets import registry_password
from tasks.errors import (
    ConfirmationRequired,
    RetryableError,
    TaskFailed,
    UsageError,
    disk_error,
    results_write_errors,
)
from tasks.settings.load import Settings, load

ARTIFACT_TYPE = "application/vnd.qlora-fleet.{}.v1"
CARD_FILE, PUSH_FILE = "README.md", "adapter-push.json"
ERROR_TYPES = {
    "transient": RetryableError,
    "refused": ConfirmationRequired,
    **dict.fromkeys(("unauthorized", "forbidden", "absent", "usage"), UsageError),
}


def push_adapter(
    context: Context,
    run: str | None,
    *,
    folder: str | None,
    oci: str | None,
    bucket: str | None,
    merged: bool,
    dry_run: bool = False,
) -> Answer | None:
    settings = load(context)
    if sum(target is not None for target in (folder, oci, bucket)) != 1:
        raise UsageError(
            "adapter.push: expected one target",
            remedy="pass one of --folder=DIR, --oci=HOST/REPOSITORY:TAG and --bucket=oci://BUCKET@NAMESPACE/PREFIX",
        )
    if (oci or "").startswith("oci://"):
        raise UsageError(f"adapter.push: --oci: {oci}: this is a bucket", remedy=f"type: --bucket={oci}")
    trained = open_training(settings, run)
    with scratch_folder("qlora-fleet-adapter-") as scratch:
        files = collect_files(trained, scratch, merged=merged)
        if dry_run:
            sizes = {name: path.stat().st_size for name, path in files.items()}
            target = folder or oci or bucket
            lines = [f"push  {name}, {format_size(size)}" for name, size in sizes.items()]
            return plan_answer([*lines, f"to    {target}"], run=trained.run.run_id, target=target, files=sizes)
        if folder is not None:
            copy_to_folder(files, Path(folder))
        elif oci is not None:
            _push_to_registry(settings, trained, files, oci, "model" if merged else "adapter")
        elif bucket is not None:
            _push_to_bucket(settings, trained, files, bucket)
    return None


def collect_files(trained: TrainedAdapter, scratch: Path, *, merged: bool) -> dict[str, Path]:
    """Return the files to push by their names at the target. Raises UsageError and ConfirmationRequired."""
    source = trained.adapter
    if merged:
        merged_record = trained.read_merged()
        if merged_record is None or not Path(merged_record["path"]).is_dir():
            location = "" if merged_record is None else f" (it is at {merged_record['path']} on a worker)"
            raise UsageError(
                f"run {trained.run.run_id}: no merged model here{location}", remedy="`inv adapter.merge` creates it"
            )
        source = Path(merged_record["path"])
        if (fault := folder_fault(source)) is not None:
            again = f"inv adapter.merge --run={trained.run.run_id} --base={merged_record.get('base', 'bf16')}"
            raise ConfirmationRequired(fault, remedy=f"merge into another folder: {again} --out=FOLDER")
    files = {path.name: path for path in sorted(source.iterdir()) if path.is_file() and not path.is_symlink()}
    if CARD_FILE not in files:
        (scratch / CARD_FILE).write_text(render_card(trained, trained.read_check()), encoding="utf-8")
        files[CARD_FILE] = scratch / CARD_FILE
    return files


def copy_to_folder(files: Mapping[str, Path], folder: Path) -> None:
    """Copy all files or none; an existing folder must be empty. Raises task errors."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"adapter.push: --folder: {folder}: exists and is not empty", remedy="name another one")
    partial = folder.absolute().with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, path in files.items():
            shutil.copyfile(path, partial / name)
            if sha256_of(partial / name) != sha256_of(path):
                raise ConfirmationRequired(
                    f"{partial / name}: read other bytes than were written", remedy="choose another disk"
                )
        partial.replace(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise _to_file_error(f"adapter.push: --folder: {folder}", error, "name another one") from error
    print(f"{folder}: {formatting.count(len(files), 'file')}, read back and verified")


def _to_file_error(label: str, error: OSError, remedy: str) -> TaskFailed:
    """Return the task error of a file; on a full or read-only disk one that may pass (exit code 3)."""
    if error.errno in DISK_ERRNOS:
        return disk_error(f"{label}: ", error)
    return UsageError(f"{label}: {error.strerror}", remedy=remedy)


def _push_to_registry(
    settings: Settings, trained: TrainedAdapter, files: Mapping[str, Path], oci: str, kind: str
) -> None:
    reference = parse_reference("adapter.push: --oci", oci, trained.run.run_id)
    user = configured_user(settings, reference.repository)
    retry_command = format_command("adapter.push", run=trained.folder.name, merged=kind == "model", oci=oci)
    secret = registry_password(settings, user, reference.host, retry_command)
    login = base64.b64encode(f"{user}:{secret.reveal()}".encode()).decode()
    annotations = {
        "org.opencontainers.image.title": f"{kind} of run {trained.run.run_id}",
        "qlora-fleet.adapter-sha256": str(trained.record.adapter_sha256),
        "qlora-fleet.base-sha256": str(trained.model_sha256),
    }
    try:
        registry = Registry(reference.host, reference.path, login, settings.registry.token_hosts)
        facts = artifact.push(registry, reference, files, ARTIFACT_TYPE.format(kind), annotations, print_line)
    except VmAgentError as failed:
        error_type = ERROR_TYPES.get(failed.kind, TaskFailed)
        remedy = f"`{retry_command}` resumes" if error_type is RetryableError else ""
        raise error_type.from_error(failed, remedy=remedy) from failed
    except OSError as error:
        raise _to_file_error(str(error.filename), error, "check owner and permissions") from error
    path = _write_record(trained, push_record_json(reference, facts, _now()))
    count = formatting.count(len(files), "file")
    print(f"{reference.repository}@{facts['digest']}: {count}, confirmed by the registry; wrote {path}")


def _push_to_bucket(settings: Settings, trained: TrainedAdapter, files: Mapping[str, Path], target: str) -> None:
    modules = {scheme: module for provider in PROVIDERS.values() for scheme, module in provider.buckets.items()}
    scheme = target.partition("://")[0]
    if scheme not in modules:
        expected = " or ".join(f"{name}://BUCKET/PREFIX" for name in modules)
        raise UsageError(
            f"adapter.push: --bucket: {target}: not the address of a bucket", remedy=f"expected {expected}"
        )
    storage = importlib.import_module(modules[scheme])
    try:
        facts = storage.push(settings, target, trained.run.run_id, files, print_line)
    except OSError as error:
        raise _to_file_error(str(error.filename), error, "check owner and permissions") from error
    path = _write_record(trained, json.dumps({**facts, "pushed_at": _now()}, indent=1, ensure_ascii=False) + "\n")
    print(f"{facts['place']}: {len(facts['sha256'])} files, confirmed by the service; wrote {path}")


def _write_record(trained: TrainedAdapter, text: str) -> Path:
    path = trained.folder / PUSH_FILE
    with results_write_errors(path):
        write_atomic(path, text.encode())
    return path


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
