"""Build of an image on the build VM: assembles the plan's context and runs the engine's build.

The engine's client reads the context by its path, so files on a share may change between our check and its reading.
The build's own stage `received` therefore compares what the engine received with what was sent: SHA256SUMS files in the
context, whose digests are arguments of the build. The Dockerfile itself goes over standard input.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from remote.agent.build_vm.client import classify_failure, inspect_image, run_logged
from remote.agent.build_vm.job import JobLog, wrap_os_errors, write_json
from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.files import hash_file, read_json, write_atomic
from remote.agent.shared.secure_dir import ForeignOwner, ensure_own_folder

RECORD_FILE = "packed.json"  # in our folder of jobs, which is never shared: what each archive was packed from
DOCKERFILE = "image/Dockerfile"
SUMS_FILE = "SHA256SUMS"
MODELS_FOLDER = "models"
# Printed by the Dockerfile's stage `received`.
CONTEXT_DIFFERS = re.compile(r"#\d+ [\d.]+ context differs from what was sent: (.*)")


def run(job_log: JobLog, job: dict[str, Any]) -> dict[str, Any]:
    docker = job["docker"]
    # 18.09 to 22.06 build without BuildKit by default; newer clients add an attestation to every build.
    os.environ.update(DOCKER_BUILDKIT="1", BUILDX_NO_DEFAULT_ATTESTATIONS="1")
    # A local base image is used without a query, so that a build does not need the base's registry.
    if inspect_image(docker, job["base"]) is None:
        job_log.add(f"pulling {job['base']}", "base image")
        code, lines = run_logged(job_log, [*docker, "pull", job["base"]])
        if code != 0:
            raise classify_failure(lines, code)
    with wrap_os_errors(job["context"]):
        sums = assemble(job_log, job)
        dockerfile = Path(job["code_folder"], DOCKERFILE).read_bytes()  # the client gets it over standard input
    if hashlib.sha256(dockerfile).hexdigest() != dict(job["code"])[DOCKERFILE]:
        path = Path(job["code_folder"], DOCKERFILE)
        raise VmAgentError("changed", f"{path}: differs from the uploaded file", remedy="`inv build` uploads it again")
    *options, context = job["argv"][1:]
    sums_arguments = (word for name, sha256 in sums.items() for word in ("--build-arg", f"{name}={sha256}"))
    with tempfile.TemporaryFile() as stdin:
        stdin.write(dockerfile)
        stdin.seek(0)
        code, lines = run_logged(job_log, [*docker, *options, *sums_arguments, context], stdin=stdin)
    if code != 0:
        if (difference := next(filter(None, map(CONTEXT_DIFFERS.match, lines)), None)) is not None:
            # The engine's copy could be used again: it reads a file only if its size or time changed.
            run_logged(job_log, [*docker, "builder", "prune", "--force", "--filter", "type=source.local"])
            raise VmAgentError(
                "refused",
                f"{context}: the engine received other files than were sent ({difference[1]}): changed by another user "
                "or a damaged disk",
                remedy="check who may write there, then rerun `inv build`",
            )
        raise classify_failure(lines, code)
    built = inspect_image(docker, job["image"])
    if built is None:
        raise VmAgentError("failed", f"the build succeeded, but the engine has no image {job['image']}")
    return {"image_id": built["Id"], "size_bytes": built["Size"]}


def assemble(job_log: JobLog, job: dict[str, Any]) -> dict[str, str]:
    """Make the context folder contain exactly the plan's files: our files as links, and a tar archive per slot.

    Returns the Dockerfile's arguments with the digests of the context's SHA256SUMS files.
    """
    context = Path(job["context"])
    ensure_own_folder(context.parent)
    if context.is_symlink():
        raise ForeignOwner(f"{context}: is a link; check and remove it, then rerun `inv build`")
    sha256_of_code = {str(path): str(sha256) for path, sha256 in job["code"]}
    code_files = {context / path: Path(job["code_folder"], path) for path in sha256_of_code}
    slots: dict[str, list[dict[str, Any]]] = {}
    for entry in job["packed"]:
        slots.setdefault(f"{entry['slot']:02d}.tar", []).append(entry)
    archives = {context / MODELS_FOLDER / name: entries for name, entries in slots.items()}
    _empty_context(context, archives)
    folders = {context, context / "wheels", context / MODELS_FOLDER}
    folders |= {parent for path in code_files for parent in path.parents if context in parent.parents}
    for folder in sorted(folders):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    job_log.add(f"context: {len(code_files)} files and {len(archives)} slots in {context}", "context")
    for path, source in code_files.items():
        source.chmod(0o644)  # the image's user must be able to read them, regardless of the umask
        _set_time(source, sha256_of_code[path.relative_to(context).as_posix()])
        _link_or_copy(source, path)
    record_file = Path.cwd().parent.parent / RECORD_FILE
    known = read_json(record_file)
    # One context has a record: a build with another --tmpdir packs its own archives.
    record = known["archives"] if isinstance(known, dict) and known.get("context") == str(context) else {}
    record = record if isinstance(record, dict) else {}
    for path, entries in archives.items():
        content = [[entry["place"], entry["sha256"]] for entry in entries]
        if _is_packed(job_log, path, record.get(path.name), content):
            continue
        job_log.add(f"packing {path.name}: {', '.join(entry['place'] for entry in entries)}", "packing")
        record.pop(path.name, None)
        write_json(record_file, {"context": str(context), "archives": record})
        record[path.name] = [*_write_archive(path, entries), content]
        write_json(record_file, {"context": str(context), "archives": record})
    code_folder = Path(job["code_folder"])
    for old in code_folder.parent.iterdir():
        if old != code_folder:
            shutil.rmtree(old, ignore_errors=True)
    return {
        "CONTEXT_SHA256": _write_sums(context, sha256_of_code),
        "MODELS_SHA256": _write_sums(context / MODELS_FOLDER, {path.name: record[path.name][1] for path in archives}),
    }


def _write_sums(folder: Path, digests: dict[str, str]) -> str:
    """Write the folder's SHA256SUMS, as `sha256sum --check` reads it. Returns the file's own sha256."""
    content = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(digests.items())).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    sums_file = folder / SUMS_FILE
    write_atomic(sums_file, content)
    sums_file.chmod(0o644)
    _set_time(sums_file, sha256)
    return sha256


def _set_time(path: Path, sha256: str) -> None:
    """Set a modification time that depends on the content only.

    The engine skips a file whose size and time did not change, and the layers' digests contain the times.
    """
    seconds = int(sha256[:8], 16) & 0x7FFFFFFF
    os.utime(path, (seconds, seconds))


def _empty_context(context: Path, archives: Collection[Path]) -> None:
    """Remove what an earlier build left in the context, except these archives."""
    for path in sorted(context.rglob("*"), reverse=True):
        if path.is_symlink() or not path.is_dir():
            if path not in archives:
                path.unlink()
        elif path != context / MODELS_FOLDER:
            path.rmdir()


def _is_packed(job_log: JobLog, path: Path, known: Any, content: list[Any]) -> bool:
    """Return True if the archive was packed with this verified content and its digest is unchanged."""
    if not path.is_file() or not isinstance(known, list) or len(known) != 3 or known[2] != content:
        return False
    job_log.add(f"verifying {path.name}: {known[0] / 1e9:.2f} GB", "verifying")
    if list(hash_file(path)) == known[:2]:
        return True
    job_log.add(f"{path}: changed since it was packed; packing it again")
    return False


def _link_or_copy(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError as error:  # some shares do not support hard links
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        shutil.copy2(source, path)


def _write_archive(path: Path, entries: list[dict[str, Any]]) -> tuple[int, str]:
    """Write a slot's archive and verify its files. Returns its size and sha256.

    The bytes depend on the files' content only, not on their owners.
    """
    part = path.with_name(f"{path.name}.part")
    folders = sorted(
        {parent for entry in entries for parent in PurePosixPath(entry["place"]).parents} - {PurePosixPath(".")}
    )
    try:
        with part.open("wb") as file:
            output = _HashingFile(file)
            with tarfile.open(fileobj=cast("IO[bytes]", output), mode="w", format=tarfile.GNU_FORMAT) as tar:
                for folder in folders:
                    header = tarfile.TarInfo(str(folder))
                    header.type, header.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(header)
                for entry in entries:
                    _add_verified(tar, entry)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return output.size, output.digest.hexdigest()


def _add_verified(tar: tarfile.TarFile, entry: dict[str, Any]) -> None:
    header = tarfile.TarInfo(entry["place"])
    header.size, header.mode = entry["size"], 0o644
    with Path(entry["source"]).open("rb") as content:
        reader = _HashingFile(content)
        if os.fstat(content.fileno()).st_size == entry["size"]:
            tar.addfile(header, cast("IO[bytes]", reader))
    if reader.digest.hexdigest() != entry["sha256"]:
        raise VmAgentError(
            "refused",
            f"{entry['source']}: its sha256 differs from its manifest",
            remedy="fetch it again with `inv model.fetch`",
        )


class _HashingFile:
    """File wrapper that hashes while reading or writing."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def read(self, size: int) -> bytes:
        return self._hash(self._file.read(size))

    def write(self, chunk: bytes) -> int:
        return self._file.write(self._hash(chunk))

    def tell(self) -> int:  # vocabulary: the method of files
        return self.size

    def _hash(self, chunk: bytes) -> bytes:
        self.digest.update(chunk)
        self.size += len(chunk)
        return chunk
