"""Archive of an image on the build VM: one compressed file and its checksum file.

The exit codes of both the client and the compressor are checked: if the engine fails, `docker save | gzip` exits 0 and
leaves a valid empty archive.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Any, cast

from remote.agent.build_vm.client import MAX_LINE_BYTES, classify_failure, inspect_image
from remote.agent.build_vm.job import JobLog, report_progress
from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.files import hash_file
from remote.agent.shared.secure_dir import check_trusted

# The first installed one is used. zstd and pigz use every core; zstd at level 3 also makes smaller files than gzip.
COMPRESSORS = (
    ("zstd", ("-T0", "-3", "-q", "-c"), ".tar.zst"),
    ("pigz", ("-c",), ".tar.gz"),
    ("gzip", ("-c",), ".tar.gz"),
)


def run(job_log: JobLog, job: dict[str, Any]) -> dict[str, Any]:
    """Save the image into the folder `path`."""
    docker, image = job["docker"], inspect_image(job["docker"], job["image"])
    if image is None or image["Id"] != job["image_id"]:
        raise VmAgentError("changed", f"{job['image']} was removed or rebuilt after this command started")
    name, options, suffix = next(entry for entry in COMPRESSORS if shutil.which(entry[0]))
    path = Path(job["path"], re.sub(r"[^A-Za-z0-9._-]", "-", job["image"]) + suffix)
    checksum = path.with_name(f"{path.name}.sha256")
    part, checksum_part = (target.with_name(f".{target.name}.part") for target in (path, checksum))
    path.parent.mkdir(parents=True, exist_ok=True)
    check_trusted(path.parent)
    for old in (path, checksum):  # another user's is refused here, not after minutes of saving
        with contextlib.suppress(FileNotFoundError):
            check_trusted(old)
    job_log.add(f"docker save {job['image']} | {name} > {path}", "archive")
    try:
        label = f"writing {path.name}"
        with report_progress(job_log, label, lambda: (part.stat().st_size if part.exists() else 0, image["Size"])):
            run_pipeline([*docker, "save", job["image"]], [name, *options], part)
        digest = hash_file(part)[1]
        checksum.unlink(missing_ok=True)  # that of an old archive, which stays until here
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    with create_file(checksum_part) as file:
        file.write(f"{digest}  {path.name}\n".encode())
    os.replace(checksum_part, checksum)
    job_log.add(f"{path}: {path.stat().st_size / 1e9:.2f} GB, sha256 {digest}", "archive")
    return {"path": str(path), "size_bytes": path.stat().st_size, "compressor": name}


def create_file(path: Path) -> IO[bytes]:
    """Create a new file and open it for writing; never reuse another user's file or follow a link."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    os.fchmod(handle, 0o644)  # whatever the umask: other users may copy an archive
    return os.fdopen(handle, "wb")


def run_pipeline(source: list[str], compressor: list[str], path: Path) -> None:
    """Run `source | compressor > path`. Raises VmAgentError if either fails."""
    with tempfile.TemporaryFile() as errors, create_file(path) as file:
        save = subprocess.Popen(source, stdin=DEVNULL, stdout=PIPE, stderr=errors)
        compress = subprocess.Popen(compressor, stdin=save.stdout, stdout=file, stderr=errors)
        # With our copy open, the engine's client would not notice that the compressor exited.
        cast("IO[bytes]", save.stdout).close()
        try:
            codes = (compress.wait(), save.wait())
        finally:
            for process in (compress, save):
                process.kill()
                process.wait()
        os.fsync(file.fileno())
        errors.seek(max(0, errors.tell() - MAX_LINE_BYTES))
        complaint = errors.read().decode(errors="replace").splitlines()
    if codes[1] != 0:
        raise classify_failure(complaint, codes[1])
    if codes[0] != 0:
        raise VmAgentError("failed", f"{compressor[0]} ended with exit code {codes[0]}")
