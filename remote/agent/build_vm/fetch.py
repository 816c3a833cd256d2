"""Fetch of a model into its folder, a detached job on the build VM. Verifies each file and writes the manifest last.

    {"model": "org/name", "revision": "v1.0" or null, "folder": "/mnt/fss/qlora-fleet/models/org--name", "token": false,
     "endpoint": null, "index_url": null, "cache": null for the hub, or "/home/me/.cache/..."}

`manifest.json` has model, commit, and path, size and sha256 of each file. SHA256SUMS has the digests for `sha256sum -c`
and for the bench. A folder with a manifest is complete; a fetch into a folder without one is resumed. If no revision is
set, a folder with a manifest keeps its commit.

The token comes through a named pipe that is read once (`scripts/send_token.py`), so it is in no file, argument or
environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from remote.agent.build_vm.hf_hub import HubSource
from remote.agent.build_vm.job import JobLog, read_secret, report_progress, wrap_os_errors
from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.files import CHUNK_BYTES, write_atomic
from remote.agent.shared.model_files import CacheSource, Entry, is_plain_name, select_files

MANIFEST_FILE, SUMS_FILE = "manifest.json", "SHA256SUMS"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_HEADROOM_BYTES = 64 << 20
MAX_JSON_BYTES = 64 << 20  # the index of a model of 671 billion parameters has 9 MB


def run(job_log: JobLog, job: dict[str, Any]) -> dict[str, Any]:
    """Fetch or verify one model. Returns facts about it. Raises VmAgentError."""
    folder = Path(job["folder"])
    token = read_secret() if job["token"] else None
    with wrap_os_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        previous = read_manifest(folder)
        if previous is not None and job["revision"] in (None, previous["revision"], previous.get("asked")):
            damaged = _remove_damaged(job_log, folder, previous["files"])
            if not damaged:
                return _manifest_facts(previous, 0, "the manifest of its fetch")
            job_log.add(f"{', '.join(damaged)}: different from the manifest; fetching again")
            job = {**job, "revision": previous["revision"]}  # main may have moved on
        cache = job["cache"]
        source = HubSource(job_log, job, token) if cache is None else CacheSource(cache, job["model"], job["revision"])
        fetched_bytes, manifest = _fetch_all(job_log, folder, source, job, previous)
    return _manifest_facts(manifest, fetched_bytes, f"the digests {'in the cache' if job['cache'] else 'of the hub'}")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest: dict[str, Any] = _read_json(folder / MANIFEST_FILE)
        return manifest if isinstance(manifest["files"], list) and isinstance(manifest["revision"], str) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_json(path: Path) -> Any:
    """Parse a file of limited size. Raises OSError, ValueError and RecursionError."""
    with path.open("rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"{path}: longer than {MAX_JSON_BYTES >> 20} MiB")
    return json.loads(content)


def _manifest_facts(manifest: dict[str, Any], fetched_bytes: int, verified_against: str) -> dict[str, Any]:
    return {
        "revision": manifest["revision"],
        "files": len(manifest["files"]),
        "bytes": sum(entry["size"] for entry in manifest["files"]),
        "fetched_bytes": fetched_bytes,
        "verified_against": verified_against,
        "without_digest": manifest.get("without_digest", []),
    }


# --- fetch ------------------------------------------------------------------------------------------------------------


def _fetch_all(
    job_log: JobLog, folder: Path, source: HubSource | CacheSource, job: dict[str, Any], previous: dict[str, Any] | None
) -> tuple[int, dict[str, Any]]:
    revision, listed = source.list_files()
    if not _COMMIT.match(revision):
        raise VmAgentError("failed", f"{job['model']}: the source returned {revision!r} instead of a commit")
    entries = select_files(listed)
    job_log.add(f"{job['model']} at {revision}: {len(entries)} files", "fetching")
    _check_free_space(folder, entries)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # the folder is incomplete from here on
    fetched_bytes, done = 0, list[Entry]()
    small_first = sorted(entries, key=lambda entry: (entry["path"].endswith(".safetensors"), entry["path"]))
    for entry in small_first:
        if entry["path"].endswith(".safetensors") and entry["path"] not in weight_files(folder, entries):
            continue
        file_bytes, sha256 = _fetch_file(job_log, folder, source, entry)
        fetched_bytes += file_bytes
        done.append({"path": entry["path"], "size": (folder / entry["path"]).stat().st_size, "sha256": sha256})
    current_names = {entry["path"] for entry in done} | {SUMS_FILE}
    for entry in previous["files"] if previous is not None else ():  # files of another commit
        if entry["path"] not in current_names and is_plain_name(entry["path"]):
            (folder / entry["path"]).unlink(missing_ok=True)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's records of interrupted downloads
    done.sort(key=lambda entry: entry["path"])
    write_atomic(folder / SUMS_FILE, "".join(f"{entry['sha256']}  {entry['path']}\n" for entry in done).encode())
    size, sha256, _ = digests(job_log, folder / SUMS_FILE)
    done.append({"path": SUMS_FILE, "size": size, "sha256": sha256})
    manifest = {"model": job["model"], "revision": revision, "asked": job["revision"] or "main", "files": done}
    fetched_names = {entry["path"] for entry in done}
    without_digest = sorted(
        entry["path"]
        for entry in entries
        if entry["path"] in fetched_names and entry.get("sha256") is None and entry.get("git_sha1") is None
    )
    if without_digest:
        manifest["without_digest"] = without_digest
    write_atomic(folder / MANIFEST_FILE, (json.dumps(manifest, indent=1) + "\n").encode())
    return fetched_bytes, manifest


def weight_files(folder: Path, entries: list[Entry]) -> set[str]:
    """List the model's weight files: those in its index, or the only one."""
    names = {entry["path"] for entry in entries}
    if "model.safetensors.index.json" not in names:
        return {"model.safetensors"} & names
    try:
        wanted = set(_read_json(folder / "model.safetensors.index.json")["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise VmAgentError(
            "failed", "model.safetensors.index.json lists no files", remedy="choose another model"
        ) from error
    if wanted - names:
        raise VmAgentError("failed", f"{min(wanted - names)}: in the model's index, but not in the source")
    return wanted


def _check_free_space(folder: Path, entries: list[Entry]) -> None:
    missing = 0
    for entry in entries:
        path = folder / entry["path"]
        present = path.stat().st_size if path.is_file() else 0
        missing += max(0, (entry["size"] or 0) - present)
    cached = sum(path.stat().st_size for path in (folder / ".cache").rglob("*.incomplete"))
    need, free = missing - cached + _HEADROOM_BYTES, shutil.disk_usage(folder).free
    if missing > cached and need > free:
        raise VmAgentError(
            "full", f"{folder}: {free / 1e9:.2f} GB free, the rest of the model needs {need / 1e9:.2f} GB"
        )


def _fetch_file(job_log: JobLog, folder: Path, source: HubSource | CacheSource, entry: Entry) -> tuple[int, str]:
    """Fetch and verify one file. Returns the bytes fetched and its sha256. Raises VmAgentError."""
    path = folder / entry["path"]
    for attempt in (1, 2):
        fetched_bytes = 0
        if not path.is_file():
            source.fetch(entry, folder)
            fetched_bytes = path.stat().st_size
        size, sha256, git_sha1 = digests(job_log, path)
        actual = {"size": size, "sha256": sha256, "git_sha1": git_sha1}
        if all(entry.get(key) in (None, value) for key, value in actual.items()):
            return fetched_bytes, sha256
        path.unlink()
        _clear_hub_cache(folder, entry["path"])
        if fetched_bytes and attempt == 2:
            break
        job_log.add(f"{entry['path']}: {size} bytes, wrong size or digest; fetching again")
    raise VmAgentError(
        "refused",
        f"{entry['path']}: had a wrong digest twice and was deleted",
        remedy="choose another source",
    )


def _remove_damaged(job_log: JobLog, folder: Path, files: list[Entry]) -> list[str]:
    """Remove the files that differ from the manifest. Returns their names."""
    damaged = []
    job_log.add(f"{folder}: verifying {len(files)} files", "verifying")
    for entry in files:
        path = folder / entry["path"]
        is_whole = path.is_file() and path.stat().st_size == entry["size"]
        if not is_whole or digests(job_log, path)[1] != entry["sha256"]:
            damaged.append(entry["path"])
            if is_plain_name(entry["path"]):
                path.unlink(missing_ok=True)
                _clear_hub_cache(folder, entry["path"])
    return damaged


def _clear_hub_cache(folder: Path, name: str) -> None:
    """Delete the hub client's record of this file, and the bytes of interrupted downloads."""
    for path in (folder / ".cache").rglob("*"):
        if path.name.startswith(name) or path.suffix == ".incomplete":
            path.unlink(missing_ok=True)


def digests(job_log: JobLog, path: Path) -> tuple[int, str, str]:
    """Compute size, sha256, and the git blob sha1, which the hub uses for small files; show the progress."""
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file, report_progress(job_log, f"verifying {path.name}", lambda: (file.tell(), size)):
        while chunk := file.read(CHUNK_BYTES):
            sha256.update(chunk)
            if size < 64 << 20:  # the hub does not use the sha1 for larger files
                git.update(chunk)
    return size, sha256.hexdigest(), git.hexdigest()
