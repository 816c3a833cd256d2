"""On the build VM: assemble the context the plan describes, and have the engine build it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

from remote.onvm import Failed, Watcher, ask, follow, reason, sha256_of


def act(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    docker, environment = job["docker"], job["environment"]
    there = ask(docker, environment, "image", "inspect", job["image"])
    if there is not None and (there[0]["Config"].get("Labels") or {}).get(job["label"]) == job["digest"]:
        watcher.say(f"{job['image']}: another job has just built this very image", "built")
        return {"image_id": there[0]["Id"], "size_bytes": there[0]["Size"], "base_digests": []}
    try:
        assemble(watcher, job)
    except OSError as error:
        kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "failed"
        raise Failed(kind, f"context: {error.filename}: {error.strerror}") from None
    # A base that is here already is used as it is; asking its registry at every build would need that registry.
    if ask(docker, environment, "image", "inspect", job["base"]) is None:
        watcher.say(f"pulling {job['base']}", "base image")
        code, lines = follow(watcher, [*docker, "pull", job["base"]], environment)
        if code != 0:
            raise reason(lines, code)
    code, lines = follow(watcher, job["argv"], environment)
    if code != 0:
        raise reason(lines, code)
    made = ask(docker, environment, "image", "inspect", job["image"])
    base = ask(docker, environment, "image", "inspect", job["base"])
    if made is None:
        raise Failed("failed", f"the build ended well, but the engine has no image {job['image']}")
    return {
        "image_id": made[0]["Id"],
        "size_bytes": made[0]["Size"],
        "base_digests": (base[0].get("RepoDigests") or []) if base else [],
    }


def assemble(watcher: Watcher, job: dict[str, Any]) -> None:
    """Make the context folder hold exactly the plan's files. Weights are hard links, or copies across file systems."""
    context, sources = Path(job["context"]), _sources(job)
    wanted = {context / place: source for place, source in sources.items()}
    folders = {context, context / "wheels"}
    folders |= {parent for path in wanted for parent in path.parents if context in parent.parents}
    _clear(context, wanted, folders)
    for folder in sorted(folders):
        folder.mkdir(parents=True, exist_ok=True)
    watcher.say(f"context: {len(wanted)} files in {context}", "context")
    for path, source in wanted.items():
        source.chmod(source.stat().st_mode | 0o444)  # the image's user has to read them, whatever umask made them
        if not path.exists():
            _link(source, path)
    # Our files were written when they arrived, the folders just now; an image should not depend on either. A time
    # stamp is part of a layer, and a layer's digest decides whether weights are pushed again.
    for path in (*(context / place for place, _ in job["code"]), *sorted(folders, reverse=True)):
        if path in folders:
            path.chmod(0o755)
        os.utime(path, (0, 0))
    code_folder = Path(job["code_folder"])
    for old in code_folder.parent.iterdir():
        if old != code_folder:
            shutil.rmtree(old, ignore_errors=True)


def _sources(job: dict[str, Any]) -> dict[str, Path]:
    """Place in the context to file on this machine, each still what the plan was made of."""
    sources = {}
    for place, sha256 in job["code"]:
        sources[place] = source = Path(job["code_folder"], place)
        if not source.is_file() or sha256_of(source) != sha256:
            raise Failed("changed", f"{source}: is not what was sent; `inv build` again sends it anew")
    for link in job["links"]:
        sources[link["place"]] = source = Path(link["source"])
        if not source.is_file() or source.stat().st_size != link["size"]:
            raise Failed("changed", f"{source}: not what the manifest says any more; `inv model.fetch` mends it")
    return sources


def _clear(context: Path, wanted: dict[Path, Path], folders: set[Path]) -> None:
    """Take away what an earlier build left and this one does not want."""
    for path in sorted(context.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if path not in folders:
                path.rmdir()
        elif path not in wanted or not _same(path, wanted[path]):
            path.unlink()


def _same(path: Path, source: Path) -> bool:
    """Is the context's file this very source: linked, or an equal copy of another file system's?"""
    here, there = path.lstat(), source.stat()
    return os.path.samestat(here, there) or (
        here.st_dev != there.st_dev and (here.st_size, here.st_mtime) == (there.st_size, there.st_mtime)
    )


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        part = path.with_name(f"{path.name}.part")
        shutil.copy2(source, part)  # a copy cut short must not be taken for the file by the next build
        part.replace(path)
