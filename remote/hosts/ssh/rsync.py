"""Upload of large folders to the build VM: rsync over the OpenSSH client, or tar if one side has no rsync.

    push_folder(host, Path("models/org--name"), "/mnt/fss/models/org--name", timeout_sec=7200.0)

Paramiko transfers bulk data several times slower than OpenSSH, so this runs the `ssh` program with the strict
configuration of the host's own connection: same hops, same host keys, no prompts. After an interruption the same call
resumes. rsync resumes inside the partial file, which it renames when complete; tar sends it again (it is truncated and
has another modification time).

Not covered: verification of the content. Files of equal size and time count as equal; `remote.jobs.transfer` compares
digests of results, `remote.image.model_fetch` those of models.
"""

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.hosts.base import CommandFailed, Completed, HostError, HostKeyRefused, HostUnreachable, check
from remote.hosts.command import Command
from remote.hosts.process import CannotStart, run_program
from remote.hosts.ssh.host import SshHost

PARTIAL_FOLDER = ".rsync-partial"
_COMMAND_TIMEOUT_SEC = 60.0
_STALL_TIMEOUT_SEC = 60
_MIN_RSYNC_VERSION = (3, 1)  # --info=progress2; macOS has an older version, or another program of that name
_PROGRESS = re.compile(rb"^\s*([\d,]+)\s+(\d+)%")
# rsync(1), EXIT VALUES: socket, protocol stream, two time-outs; 255 is ssh's own code.
_CONNECTION_LOST_CODES = {10, 12, 30, 35, 255}
_FULL_DISK_BYTES = 1 << 20
# GNU tar reports a full disk as a short write.
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|Wrote only \d+ of \d+ bytes")


class NoSpace(HostError):
    """A full disk at the target. Complete files stay; the same call resumes."""


@dataclass(frozen=True, kw_only=True)
class UploadProgress:
    """Progress of a transfer: bytes sent and, if known, percent of the whole transfer."""

    byte_count: int
    percent: int | None = None


ProgressListener = Callable[[UploadProgress], None]


def push_folder(
    host: SshHost, source: Path, target: str, *, timeout_sec: float, on_progress: ProgressListener = lambda _: None
) -> None:
    """Copy the local files below `source` into the folder `target` on the host; other files there stay.

    Raises NoSpace, HostUnreachable (a retry resumes), CommandTimedOut, CommandFailed, and the errors of
    `SshHost.connect`.
    """
    if not source.is_dir():
        raise FileNotFoundError(2, "no such folder", str(source))
    command = Command(argv=("mkdir", "-p", "--", target))
    check(host, command, host.run(command, timeout_sec=_COMMAND_TIMEOUT_SEC))

    transfer = _Transfer(host=host, source=source, target=target, timeout_sec=timeout_sec, on_progress=on_progress)
    if _has_rsync(host):
        transfer.run_rsync()
    else:
        transfer.run_tar()


def ssh_argv(host: SshHost) -> tuple[str, ...]:
    """Return the OpenSSH client with the host's strict configuration, without the host's name."""
    return ("ssh", "-F", str(host.strict_config_file), *host.destination.options)


def _has_rsync(host: SshHost) -> bool:
    try:
        local = run_program(("rsync", "--version"), label="rsync --version", timeout_sec=_COMMAND_TIMEOUT_SEC)
    except CannotStart:
        return False
    version = re.search(rb"version v?(\d+)\.(\d+)", local.stdout)
    if version is None or (int(version[1]), int(version[2])) < _MIN_RSYNC_VERSION:
        return False
    # The existing connection is used, so that a refused host key is reported with its reason.
    return host.run(Command(argv=("rsync", "--version")), timeout_sec=_COMMAND_TIMEOUT_SEC).exit_code == 0


@dataclass(frozen=True, kw_only=True)
class _Transfer:
    host: SshHost
    source: Path
    target: str
    timeout_sec: float
    on_progress: ProgressListener

    def run_rsync(self) -> None:
        name = self.host.destination.host
        address = f"[{name}]" if ":" in name else name
        command = Command(
            argv=(
                *("rsync", "--recursive", "--links", "--times", "--chmod=u+rw", "--protect-args"),
                *(
                    f"--partial-dir={PARTIAL_FOLDER}",
                    f"--timeout={_STALL_TIMEOUT_SEC}",
                    "--info=progress2",
                    "--no-inc-recursive",
                ),
                *("--rsh", shlex.join(ssh_argv(self.host)), "--", f"{self.source}/", f"{address}:{self.target}/"),
            )
        )
        completed = run_program(
            command.argv,
            label=command.render(),
            environment={**os.environ, "LC_ALL": "C"},
            on_stdout=_RsyncProgress(self.on_progress),
            timeout_sec=self.timeout_sec,
        )
        if completed.exit_code != 0:
            raise self._to_host_error(command, completed)

    def run_tar(self) -> None:
        remote_files = self._remote_files()
        names = [name for name, info in _local_files(self.source).items() if remote_files.get(name) != info]
        pack = ("tar", "--create", "--file=-", f"--directory={self.source}", "--no-recursion", "--null", "-T-")
        unpack = shlex.join(("tar", "--extract", "--file=-", f"--directory={self.target}"))
        if names:
            self._pipe(pack, (*ssh_argv(self.host), "--", self.host.destination.host, f"exec {unpack}"), names)

    def _pipe(self, packer: Sequence[str], receiver: Sequence[str], names: Sequence[str]) -> None:
        """Run `packer | receiver`, with the file names on the packer's input; both exit codes count."""
        command = Command(argv=tuple(receiver))
        with contextlib.ExitStack() as stack:
            names_file, error_file = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            names_file.write(b"".join(os.fsencode(f"./{name}") + b"\0" for name in names))
            names_file.seek(0)
            packing = stack.enter_context(
                subprocess.Popen(
                    list(packer), stdin=names_file, stdout=subprocess.PIPE, stderr=error_file, start_new_session=True
                )
            )
            stack.callback(packing.kill)
            assert packing.stdout is not None  # noqa: S101 - for the type checker
            pipe = _CountingReader(packing.stdout.read1, self.on_progress)  # type: ignore[attr-defined]
            completed = run_program(receiver, label=command.render(), stdin=pipe, timeout_sec=self.timeout_sec)
            packing.stdout.close()
            try:
                code = packing.wait(_COMMAND_TIMEOUT_SEC)
            except subprocess.TimeoutExpired:
                packing.kill()
                packing.wait()
                code = 255
            error_file.seek(0)
            error_output = error_file.read()
        if completed.exit_code == 0 and code != 0:
            completed = Completed(exit_code=code if code > 0 else 128 - code, stderr=error_output)
        if completed.exit_code != 0:
            raise self._to_host_error(command, completed)

    def _remote_files(self) -> dict[str, tuple[int, int]]:
        """List the files of the target like `_local_files`."""
        command = Command(argv=("find", self.target, "!", "-type", "d", "-printf", r"%s %T@ %P\0"))
        output = check(self.host, command, self.host.run(command, timeout_sec=_COMMAND_TIMEOUT_SEC * 5)).stdout
        files = (entry.split(b" ", 2) for entry in output.split(b"\0") if entry)
        return {os.fsdecode(name): (int(size), int(float(mtime))) for size, mtime, name in files}

    def _free_bytes(self) -> int:
        command = Command(argv=("df", "-Pk", "--", self.target))
        output = check(self.host, command, self.host.run(command, timeout_sec=_COMMAND_TIMEOUT_SEC)).stdout
        return int(output.split(b"\n")[1].split()[3]) * 1024

    def _to_host_error(self, command: Command, completed: Completed) -> HostError:
        stderr = completed.stderr.decode(errors="replace")
        if "Host key verification failed" in stderr:
            return HostKeyRefused(f"{self.host.name}: {' '.join(stderr.split())}")
        # With exit code 11 rsync's message may be lost, because rsync ends the ssh that carries it. So check the disk.
        if _DISK_FULL.search(stderr) or (completed.exit_code == 11 and self._free_bytes() < _FULL_DISK_BYTES):
            target = f"{self.host.name}: {self.target}"
            return NoSpace(f"{target}: no space left on its disk", remedy="free some, then rerun the command to resume")
        if completed.exit_code in _CONNECTION_LOST_CODES or completed.exit_code < 0:
            first_line = (stderr.strip().splitlines() or ["no message"])[0]
            return HostUnreachable(f"{self.host.name}: the connection broke during the transfer: {first_line}")
        return CommandFailed(self.host.name, command, completed)


def _local_files(folder: Path) -> dict[str, tuple[int, int]]:
    """List every file below `folder` with its size and its time in whole seconds; links are not followed."""
    files = ((path, path.lstat()) for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(folder)): (info.st_size, int(info.st_mtime)) for path, info in files}


class _RsyncProgress:
    """Parser of rsync's progress: `  1,234,567  12%  ...` after each carriage return."""

    def __init__(self, on_progress: ProgressListener) -> None:
        self._on_progress, self._partial_line = on_progress, b""

    def __call__(self, chunk: bytes) -> None:
        *lines, self._partial_line = re.split(rb"[\r\n]", self._partial_line + chunk)
        for line in lines:
            if progress := _PROGRESS.match(line):
                byte_count = int(progress[1].replace(b",", b""))
                self._on_progress(UploadProgress(byte_count=byte_count, percent=int(progress[2])))


class _CountingReader:
    """A stream that counts the bytes read from it."""

    def __init__(self, read: Callable[[int], bytes], on_progress: ProgressListener) -> None:
        self._read, self._on_progress, self._byte_count = read, on_progress, 0

    def read(self, size: int, /) -> bytes:
        chunk = self._read(size)
        self._byte_count += len(chunk)
        if chunk:
            self._on_progress(UploadProgress(byte_count=self._byte_count))
        return chunk
