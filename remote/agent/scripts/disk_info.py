"""File systems and models of the build VM, which a build plan needs, as one JSON line.

    python -c THIS '{"places": ["/mnt/fss", ...], "models": [["org--name", "/mnt/fss/..."], ...]}'

For a folder that does not exist, its nearest existing parent is examined.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 16 << 20


def folder_info(path: str) -> dict[str, Any]:
    existing = path
    while not os.path.lexists(existing) and existing != "/":
        existing = str(Path(existing).parent)
    real = Path(existing).resolve()
    filesystem = os.statvfs(real)
    kind = subprocess.run(("df", "--output=fstype", "--", real), stdout=subprocess.PIPE, check=False).stdout.split()
    return {
        "path": path,
        "exists": existing == path,
        "is_folder": real.is_dir(),
        "kind": kind[-1].decode() if kind else "unknown",
        "device": real.stat().st_dev,
        "free_bytes": filesystem.f_bavail * filesystem.f_frsize,
        "writable": os.access(real, os.W_OK | os.X_OK),
    }


def read_limited(path: Path) -> bytes:
    """Read a small file. Raises ValueError if it exceeds MAX_FILE_BYTES."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: longer than {MAX_FILE_BYTES} bytes")
    return content


def model_info(name: str, folder: str) -> dict[str, Any]:
    """List the model's files as (path, actual size or null, size and sha256 in the manifest)."""
    try:
        manifest = read_limited(Path(folder, "manifest.json"))
        listed = [(entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {"name": name, "folder": folder, "found": Path(folder).is_dir(), "sha256": None, "files": []}
    digest = hashlib.sha256(manifest).hexdigest()
    files: list[tuple[str, int | None, int, str]] = [("manifest.json", len(manifest), len(manifest), digest)]
    for path, size, sha256 in listed:
        file = Path(folder, path)
        files.append((path, file.stat().st_size if file.is_file() else None, size, sha256))
    return {"name": name, "folder": folder, "found": True, "sha256": digest, "files": files}


def main() -> None:
    request = json.loads(sys.argv[1])
    answer = {
        "places": [folder_info(path) for path in request["places"]],
        "models": [model_info(name, folder) for name, folder in request["models"]],
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
