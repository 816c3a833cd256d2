"""What a plan has to know of the build VM: one JSON line about its file systems, models and engine.

    python -c THIS '{"places": ["/mnt/fss", ...], "models": [["org--name", "/mnt/fss/..."], ...]}'

The nearest folder that exists answers for a place that does not. DOCKER_TMPDIR is null where this user may not see it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

MOST_BYTES = 16 << 20


def mounts(text: bytes) -> list[tuple[str, str]]:
    """Mount points and their kinds of file system: proc(5), mountinfo. Any user may have mounted under any name."""
    found = []
    for line in text.split(b"\n"):
        left, _, right = line.partition(b" - ")
        if right:
            point = re.sub(rb"\\([0-3][0-7]{2})", lambda octal: bytes([int(octal[1], 8)]), left.split(b" ")[4])
            found.append((os.fsdecode(point), os.fsdecode(right.split(b" ")[0])))
    return found


def place(path: str, mounted: list[tuple[str, str]]) -> dict[str, Any]:
    there = path
    while not os.path.lexists(there) and there != "/":
        there = str(Path(there).parent)
    real = Path(there).resolve()
    around = [mount for mount in mounted if Path(mount[0]) in (real, *real.parents)]
    room = os.statvfs(real)
    return {
        "path": path,
        "exists": there == path,
        "is_folder": real.is_dir(),
        "kind": max(around, key=lambda mount: len(mount[0]))[1] if around else "unknown",
        "device": real.stat().st_dev,
        "free_bytes": room.f_bavail * room.f_frsize,
        "writable": os.access(real, os.W_OK | os.X_OK),
    }


def content_of(path: Path) -> bytes:
    """A small file. Raises ValueError for one that is longer than any of its kind."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: longer than {MOST_BYTES} bytes")
    return content


def model(name: str, folder: str) -> dict[str, Any]:
    """The model's files as (path, size here or null, size and sha256 in the manifest)."""
    try:
        manifest = content_of(Path(folder, "manifest.json"))
        listed = [(entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {"name": name, "folder": folder, "found": Path(folder).is_dir(), "sha256": None, "files": []}
    digest = hashlib.sha256(manifest).hexdigest()
    files: list[tuple[str, int | None, int, str]] = [("manifest.json", len(manifest), len(manifest), digest)]
    for path, size, sha256 in listed:
        file = Path(folder, path)
        files.append((path, file.stat().st_size if file.is_file() else None, size, sha256))
    sums = Path(folder, "SHA256SUMS")  # the bench reads it instead of 14 GB
    if sums.is_file():
        content = content_of(sums)
        files.append((sums.name, len(content), len(content), hashlib.sha256(content).hexdigest()))
    return {"name": name, "folder": folder, "found": True, "sha256": digest, "files": files}


def docker_tmpdir() -> str | None:
    """DOCKER_TMPDIR of the dockerd that runs, or else of its unit."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("comm").read_bytes().strip() == b"dockerd":
                pairs = process.joinpath("environ").read_bytes().decode(errors="replace").split("\0")
                if value := tmpdir_in(pairs):
                    return value
        except OSError:
            continue
    try:
        argv = ["systemctl", "show", "docker", "-p", "Environment"]
        unit = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return tmpdir_in(unit.stdout.replace("Environment=", "").split())


def tmpdir_in(pairs: list[str]) -> str | None:
    return next((pair.split("=", 1)[1] for pair in pairs if pair.startswith("DOCKER_TMPDIR=")), None)


def main() -> None:
    asked, mounted = json.loads(sys.argv[1]), mounts(Path("/proc/self/mountinfo").read_bytes())
    answer = {
        "places": [place(path, mounted) for path in asked["places"]],
        "models": [model(*named) for named in asked["models"]],
        "docker_tmpdir": docker_tmpdir(),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
