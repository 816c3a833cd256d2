"""Files of a model: which of them are fetched, and where a Hugging Face cache has them."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from pathlib import Path
from typing import Any

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.files import CHUNK_BYTES

TOKEN_PIPE = "token.pipe"  # noqa: S105 - a file name
# The files that a trial reads, and the licence. No pickles; no `consolidated.safetensors`, a copy of the weights.
ALLOWED_FILES = (
    *("config.json", "generation_config.json", "model.safetensors", "model-*-of-*.safetensors"),
    *("model.safetensors.index.json", "tokenizer*.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jin*", "chat_template.json"),
    *("LICENSE*", "NOTICE*"),
)
_MAX_REF_BYTES = 256
Entry = dict[str, Any]


def select_files(listed: list[Entry]) -> list[Entry]:
    """Select the top-level files in `ALLOWED_FILES`. Raises VmAgentError if there are no weights."""
    top_level = [entry for entry in listed if is_plain_name(entry["path"])]  # fnmatch's * also matches LICENSE/../..
    entries = [entry for entry in top_level if any(fnmatch.fnmatchcase(entry["path"], name) for name in ALLOWED_FILES)]
    if not any(entry["path"].endswith(".safetensors") for entry in entries):
        raise VmAgentError(
            "usage",
            "the model has no safetensors weights, and pickles are not supported",
            remedy="choose another model",
        )
    return entries


def is_plain_name(name: str) -> bool:
    return Path(name).name == name and name not in ("", ".", "..") and name.isprintable()


def resolve_inside(cache: Path, path: Path) -> Path:
    """Resolve `path` to a file in `cache`. Raises VmAgentError("refused") if it is outside, or not a regular file."""
    real = path.resolve()
    if cache.resolve() not in real.parents:
        raise VmAgentError("refused", f"{path}: is a link out of the cache, to {real}")
    if not real.is_file():
        raise VmAgentError("refused", f"{path}: resolves to {real}, which is not a file")
    return real


def find_snapshot(path: Path, model: str, revision: str | None) -> Path:
    """Find the folder of one commit of `model` in a cache. Raises VmAgentError("usage")."""
    name = "models--" + model.replace("/", "--")
    homes = [path / "hub" / name, path / name, path]
    home = next((home for home in homes if (home / "snapshots").is_dir()), None)
    if home is None or home.name != name:
        raise VmAgentError(
            "usage", f"{path}: contains no {name}/snapshots", remedy=f"use HF_HOME, its folder hub, or {name}"
        )
    wanted = revision or "main"
    ref = home / "refs" / wanted
    commit = wanted
    if ref.is_file():
        with ref.open("rb") as file:
            commit = file.read(_MAX_REF_BYTES).decode(errors="replace").strip()
    commits = sorted(folder.name for folder in (home / "snapshots").iterdir())
    if revision is None and commit not in commits and len(commits) == 1:
        commit = commits[0]
    if commit not in commits:
        raise VmAgentError(
            "usage",
            f"{home}: has no snapshot of {wanted}",
            remedy=f"it has {', '.join(commits) or 'none'} (--revision)",
        )
    return home / "snapshots" / commit


def snapshot_files(snapshot: Path, cache: Path) -> list[Entry]:
    """List a snapshot's files. Each is a link to a blob that is named after its digest, so a cache can be verified.

    Raises VmAgentError("refused") for a link to a path outside `cache`.
    """
    entries = []
    for path in sorted(snapshot.iterdir()):
        if path.is_dir():
            continue
        real = resolve_inside(cache, path)
        blob = real.name
        entry: Entry = {"path": path.name, "size": real.stat().st_size, "sha256": None, "git_sha1": None}
        if path.is_symlink() and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob):
            entry["sha256" if len(blob) == 64 else "git_sha1"] = blob
        entries.append(entry)
    return entries


class CacheSource:
    """A Hugging Face cache on this machine: HF_HOME, its `hub`, or one model's folder in it."""

    def __init__(self, path: str, model: str, revision: str | None) -> None:
        self._path, self._snapshot = Path(path), find_snapshot(Path(path), model, revision)

    def list_files(self) -> tuple[str, list[Entry]]:
        return self._snapshot.name, snapshot_files(self._snapshot, self._path)

    def fetch(self, entry: Entry, folder: Path) -> None:
        part = folder / f".{entry['path']}.part"
        part.unlink(missing_ok=True)
        source = resolve_inside(self._path, self._snapshot / entry["path"])
        # O_NOFOLLOW: the checked file may have been replaced by a link since.
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file, part.open("xb") as copy:
            shutil.copyfileobj(file, copy, CHUNK_BYTES)
        part.replace(folder / entry["path"])
