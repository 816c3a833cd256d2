"""On the build VM, as a detached job: a model into its folder, every file verified, its manifest written last.

    {"model": "org/name", "revision": "v1.0" or null, "folder": "/mnt/fss/qlora-fleet/models/org--name", "token": false,
     "endpoint": null, "index_url": null, "source": {"kind": "hub"} or {"kind": "cache", "path": "/home/me/.cache/..."}}

`manifest.json` has model, commit, and path, size and sha256 of each file; SHA256SUMS has the digests for `sha256sum -c`
and for the bench. A folder with a manifest is whole; one without it is continued. Without a revision a folder that has
a manifest keeps its commit.

The token comes through a named pipe that is read once (`scripts/feed.py`), so it is in no file, argument or
environment. huggingface_hub runs in a process of its own (`remote.image.vm_agent.hf_hub`).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote.image.vm_agent.job import Failed, Watcher, failing
from remote.image.vm_agent.model_sources import (
    BROUGHT,
    TOKEN_PIPE,
    Entry,
    ProgressReporter,
    Source,
    source_of,
    token_from_pipe,
)
from remote.jobs.host_agent.files import PIECE
from remote.jobs.host_agent.util import write_atomic

MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
# What a trial reads, and the licence. No pickles; no `consolidated.safetensors`, which is the same weights again.
ALLOWED = (
    *("config.json", "generation_config.json", "model.safetensors", "model-*-of-*.safetensors"),
    *("model.safetensors.index.json", "tokenizer*.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jin*", "chat_template.json"),
    *("LICENSE*", "NOTICE*"),
)
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_ROOM_TO_SPARE_BYTES = 64 << 20


def act(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    """Fetch or verify one model; the facts of its manifest. Raises Failed."""
    folder, began = Path(job["folder"]), time.monotonic()
    token = token_from_pipe(Path(TOKEN_PIPE)) if job["token"] else None
    with failing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        known = read_manifest(folder)
        if known is not None and job["revision"] in (None, known["revision"], known.get("asked")):
            wrong = _damaged(watcher, folder, known["files"])
            if not wrong:
                return _facts(known, fetched=0, began=began)
            watcher.say(f"{', '.join(wrong)}: not what the manifest says; fetching again")
            job = {**job, "revision": known["revision"]}  # not what main is by now
        fetched, manifest = _bring(watcher, folder, source_of(watcher, job, token), job, known)
    return _facts(manifest, fetched=fetched, began=began)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest if isinstance(manifest["files"], list) and isinstance(manifest["revision"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _facts(manifest: dict[str, Any], *, fetched: int, began: float) -> dict[str, Any]:
    size = sum(entry["size"] for entry in manifest["files"])
    facts = {"files": len(manifest["files"]), "bytes": size, "fetched_bytes": fetched}
    return {"revision": manifest["revision"], "wall_time_sec": round(time.monotonic() - began, 1), **facts}


# --- bring ------------------------------------------------------------------------------------------------------------


def _bring(
    watcher: Watcher, folder: Path, source: Source, job: dict[str, Any], known: dict[str, Any] | None
) -> tuple[int, dict[str, Any]]:
    revision, listed = source.listed()
    if not _COMMIT.match(revision):
        raise Failed("failed", f"{job['model']}: {revision!r} is no commit; nothing was fetched")
    entries = chosen(listed)
    watcher.say(f"{job['model']} at {revision}: {len(entries)} files", "fetching")
    _check_room(folder, entries)
    (folder / MANIFEST).unlink(missing_ok=True)  # from here on the folder is not whole
    fetched, done = 0, list[Entry]()
    small_first = sorted(entries, key=lambda entry: (entry["path"].endswith(".safetensors"), entry["path"]))
    for entry in small_first:
        if entry["path"].endswith(".safetensors") and entry["path"] not in weights_of(folder, entries):
            continue
        came, sha256 = _one(watcher, folder, source, entry)
        fetched += came
        done.append({"path": entry["path"], "size": (folder / entry["path"]).stat().st_size, "sha256": sha256})
    kept = {entry["path"] for entry in done} | {SUMS}
    for entry in known["files"] if known is not None else ():  # of another commit
        if entry["path"] not in kept and _is_plain(entry["path"]):
            (folder / entry["path"]).unlink(missing_ok=True)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's notes on its broken downloads
    shutil.rmtree(folder / BROUGHT, ignore_errors=True)
    done.sort(key=lambda entry: entry["path"])
    write_atomic(folder / SUMS, "".join(f"{entry['sha256']}  {entry['path']}\n" for entry in done).encode())
    size, sha256, _ = digests(folder / SUMS)
    done.append({"path": SUMS, "size": size, "sha256": sha256})
    manifest = {"model": job["model"], "revision": revision, "asked": job["revision"] or "main", "files": done}
    write_atomic(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return fetched, manifest


def chosen(listed: list[Entry]) -> list[Entry]:
    """The files that are fetched: those of `ALLOWED`, at the top. Raises Failed if there are no weights."""
    at_top = [entry for entry in listed if _is_plain(entry["path"])]  # to fnmatch, * is also LICENSE/../..
    entries = [entry for entry in at_top if any(fnmatch.fnmatchcase(entry["path"], name) for name in ALLOWED)]
    if not any(entry["path"].endswith(".safetensors") for entry in entries):
        raise Failed("usage", "the model has no safetensors weights, and pickles are not read; name another model")
    return entries


def weights_of(folder: Path, entries: list[Entry]) -> set[str]:
    """The model's weight files: those that its index names, or the only one."""
    names = {entry["path"] for entry in entries}
    if "model.safetensors.index.json" not in names:
        return {"model.safetensors"} & names
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        wanted = set(index["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise Failed("failed", "model.safetensors.index.json names no files; the model cannot be used") from None
    if wanted - names:
        raise Failed("failed", f"{min(wanted - names)}: named in the model's index, and not there")
    return wanted


def _check_room(folder: Path, entries: list[Entry]) -> None:
    missing = 0
    for entry in entries:
        path = folder / entry["path"]
        here = path.stat().st_size if path.is_file() else 0
        missing += max(0, (entry["size"] or 0) - here)
    cached = sum(path.stat().st_size for path in (folder / ".cache").rglob("*.incomplete"))
    moved = sum(path.stat().st_size for path in (folder / BROUGHT).rglob("*") if path.is_file())
    need, free = missing - cached - moved + _ROOM_TO_SPARE_BYTES, shutil.disk_usage(folder).free
    if missing > cached + moved and need > free:
        raise Failed("full", f"{folder}: {free / 1e9:.2f} GB free, the rest of the model needs {need / 1e9:.2f} GB")


def _one(watcher: Watcher, folder: Path, source: Source, entry: Entry) -> tuple[int, str]:
    """Fetch and verify one file: the bytes that came for it, and its sha256. Raises Failed."""
    path = folder / entry["path"]
    for attempt in (1, 2):
        came = 0
        if not path.is_file():
            source.fetch(entry, folder)
            came = path.stat().st_size
        with ProgressReporter(watcher, f"verifying {entry['path']}", path.stat().st_size) as shown:
            size, sha256, git_sha1 = digests(path, shown.add)
        actual = {"size": size, "sha256": sha256, "git_sha1": git_sha1}
        if all(entry.get(key) in (None, value) for key, value in actual.items()):
            return came, sha256
        path.unlink()
        _forget(folder, entry["path"])
        if came and attempt == 2:
            break
        watcher.say(f"{entry['path']}: {size} bytes, not what its digest says; fetching again")
    raise Failed(
        "refused",
        f"{entry['path']}: came with a wrong digest, twice; nothing of it was kept; name another source",
    )


def _damaged(watcher: Watcher, folder: Path, files: list[Entry]) -> list[str]:
    """The files that differ from the manifest; they are removed."""
    wrong = []
    watcher.say(f"{folder}: verifying {len(files)} files", "verifying")
    for entry in files:
        path = folder / entry["path"]
        right = path.is_file() and path.stat().st_size == entry["size"]
        if right:
            with ProgressReporter(watcher, f"verifying {entry['path']}", entry["size"]) as shown:
                right = digests(path, shown.add)[1] == entry["sha256"]
        if not right:
            wrong.append(entry["path"])
            if _is_plain(entry["path"]):
                path.unlink(missing_ok=True)
                _forget(folder, entry["path"])
    return wrong


def _forget(folder: Path, name: str) -> None:
    """Delete the hub client's note that it has this file, and the bytes of a broken download."""
    for path in (folder / ".cache").rglob("*"):
        if path.name.startswith(name) or path.suffix == ".incomplete":
            path.unlink(missing_ok=True)


def _is_plain(name: str) -> bool:
    return Path(name).name == name and name not in ("", ".", "..")


def digests(path: Path, on_piece: Callable[[int], None] = lambda _: None) -> tuple[int, str, str]:
    """Size, sha256, and the sha1 by which git (and the hub, for small files) names this content."""
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            sha256.update(piece)
            if size < 64 << 20:  # the hub names no larger file by it
                git.update(piece)
            on_piece(len(piece))
    return size, sha256.hexdigest(), git.hexdigest()
