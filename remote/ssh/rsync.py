"""Gigabytes to the build VM: rsync over the OpenSSH client, tar where one side has no rsync.

    push_folder(host, Path("models/org--name"), "/mnt/fss/models/org--name", timeout_sec=7200.0)

Paramiko moves bulk several times slower than OpenSSH, so this runs the `ssh` program with the strict configuration of
the host's own connection: same hops, same host keys, nothing asked. After a broken move the same call goes on: rsync
inside the file it was in, which it renames into place when whole; tar with the file it was in, which until then is cut
short and has another time.

Not covered: proof of content. Equal size and time count as equal; `remote.jobs.transfer` compares digests of results,
`remote.image.model_fetch` those of models.
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

from remote.hosts.command import Command
from remote.hosts.host import CommandFailed, Completed, HostError, HostKeyRefused, HostUnreachable, check
from remote.hosts.process import CannotStart, run_program
from remote.ssh.host import SshHost

PARTIAL = ".rsync-partial"
_ASK_SEC = 60.0
_STALL_SEC = 60
_RSYNC_AT_LEAST = (3, 1)  # --info=progress2; what macOS brings is older, or another program of that name
_PROGRESS = re.compile(rb"^\s*([\d,]+)\s+(\d+)%")
_BROKEN = {10, 12, 30, 35, 255}  # rsync(1), EXIT VALUES: socket, protocol stream, two time-outs; 255 is ssh's own
_NEXT_TO_NOTHING_BYTES = 1 << 20
# GNU tar reports a full disk as a short write.
_FULL = re.compile(r"No space left on device|Disk quota exceeded|Wrote only \d+ of \d+ bytes")


class NoSpace(HostError):
    """The target's disk is full. Whole files stay; the same call goes on from there."""


@dataclass(frozen=True, kw_only=True)
class UploadProgress:
    """How far a move is: bytes so far and, where known, their share of the whole move."""

    byte_count: int
    percent: int | None = None


Listener = Callable[[UploadProgress], None]


def push_folder(
    host: SshHost, source: Path, target: str, *, timeout_sec: float, on_progress: Listener = lambda _: None
) -> None:
    """Copy the files below `source` here into the folder `target` on the host; other files there stay.

    Raises NoSpace, HostUnreachable (worth calling again), CommandTimedOut, CommandFailed, and as `SshHost.connect`.
    """
    if not source.is_dir():
        raise FileNotFoundError(2, "no such folder", str(source))
    command = Command(argv=("mkdir", "-p", "--", target))
    check(host, command, host.run(command, timeout_sec=_ASK_SEC))

    move = _Move(host=host, source=source, target=target, timeout_sec=timeout_sec, on_progress=on_progress)
    if _has_rsync(host):
        move.by_rsync()
    else:
        move.by_tar()


def ssh_argv(host: SshHost) -> tuple[str, ...]:
    """The OpenSSH client with the host's strict configuration; the host's name comes after it."""
    return ("ssh", "-F", str(host.strict_config_file), *host.destination.options)


def _has_rsync(host: SshHost) -> bool:
    try:
        here = run_program(("rsync", "--version"), label="rsync --version", timeout_sec=_ASK_SEC)
    except CannotStart:
        return False
    version = re.search(rb"version v?(\d+)\.(\d+)", here.stdout)
    if version is None or (int(version[1]), int(version[2])) < _RSYNC_AT_LEAST:
        return False
    # Over the connection that is open anyway: if the host key is refused, it is refused there, with the reason.
    return host.run(Command(argv=("rsync", "--version")), timeout_sec=_ASK_SEC).exit_code == 0


@dataclass(frozen=True, kw_only=True)
class _Move:
    host: SshHost
    source: Path
    target: str
    timeout_sec: float
    on_progress: Listener

    def by_rsync(self) -> None:
        name = self.host.destination.host
        place = f"[{name}]" if ":" in name else name
        command = Command(
            argv=(
                *("rsync", "--recursive", "--links", "--times", "--chmod=u+rw", "--protect-args"),
                *(f"--partial-dir={PARTIAL}", f"--timeout={_STALL_SEC}", "--info=progress2", "--no-inc-recursive"),
                *("--rsh", shlex.join(ssh_argv(self.host)), "--", f"{self.source}/", f"{place}:{self.target}/"),
            )
        )
        ended = run_program(
            command.argv,
            label=command.render(),
            environment={**os.environ, "LC_ALL": "C"},
            on_stdout=_Heard(self.on_progress),
            timeout_sec=self.timeout_sec,
        )
        if ended.exit_code != 0:
            raise self._explained(command, ended)

    def by_tar(self) -> None:
        there = self._there()
        names = [name for name, seen in _listed(self.source).items() if there.get(name) != seen]
        pack = ("tar", "--create", "--file=-", f"--directory={self.source}", "--no-recursion", "--null", "-T-")
        unpack = shlex.join(("tar", "--extract", "--file=-", f"--directory={self.target}"))
        if names:
            self._pipe(pack, (*ssh_argv(self.host), "--", self.host.destination.host, f"exec {unpack}"), names)

    def _pipe(self, packer: Sequence[str], taker: Sequence[str], names: Sequence[str]) -> None:
        """`packer | taker`, with the file names on the packer's input; both exit codes count."""
        command = Command(argv=tuple(taker))
        with contextlib.ExitStack() as stack:
            listed, complaints = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            listed.write(b"".join(os.fsencode(f"./{name}") + b"\0" for name in names))
            listed.seek(0)
            packing = stack.enter_context(
                subprocess.Popen(
                    list(packer), stdin=listed, stdout=subprocess.PIPE, stderr=complaints, start_new_session=True
                )
            )
            stack.callback(packing.kill)
            assert packing.stdout is not None  # noqa: S101 - for the type checker
            pipe = _Counted(packing.stdout.read1, self.on_progress)  # type: ignore[attr-defined]
            ended = run_program(taker, label=command.render(), stdin=pipe, timeout_sec=self.timeout_sec)
            packing.stdout.close()
            try:
                code = packing.wait(_ASK_SEC)
            except subprocess.TimeoutExpired:
                packing.kill()
                packing.wait()
                code = 255
            complaints.seek(0)
            complaint = complaints.read()
        if ended.exit_code == 0 and code != 0:
            ended = Completed(exit_code=code if code > 0 else 128 - code, stderr=complaint)
        if ended.exit_code != 0:
            raise self._explained(command, ended)

    def _there(self) -> dict[str, tuple[int, int]]:
        """As `_listed`, of the target."""
        command = Command(argv=("find", self.target, "!", "-type", "d", "-printf", r"%s %T@ %P\0"))
        listed = check(self.host, command, self.host.run(command, timeout_sec=_ASK_SEC * 5)).stdout
        files = (entry.split(b" ", 2) for entry in listed.split(b"\0") if entry)
        return {os.fsdecode(name): (int(size), int(float(moment))) for size, moment, name in files}

    def _free_bytes(self) -> int:
        room = Command(argv=("df", "-Pk", "--", self.target))
        last = check(self.host, room, self.host.run(room, timeout_sec=_ASK_SEC)).stdout.split(b"\n")[1]
        return int(last.split()[3]) * 1024

    def _explained(self, command: Command, ended: Completed) -> HostError:
        stderr = ended.stderr.decode(errors="replace")
        if "Host key verification failed" in stderr:
            return HostKeyRefused(f"{self.host.name}: {' '.join(stderr.split())}")
        # With exit code 11 rsync's message may be lost, because rsync ends the ssh that carries it. So ask the disk.
        if _FULL.search(stderr) or (ended.exit_code == 11 and self._free_bytes() < _NEXT_TO_NOTHING_BYTES):
            place = f"{self.host.name}: {self.target}"
            return NoSpace(f"{place}: no space left on its disk; free some, and the same command goes on from here")
        if ended.exit_code in _BROKEN or ended.exit_code < 0:
            first = (stderr.strip().splitlines() or ["no message"])[0]
            return HostUnreachable(f"{self.host.name}: the connection broke while files were moving: {first}")
        return CommandFailed(self.host.name, command, ended)


def _listed(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below `folder` with its size and the whole seconds of its time; links are not followed."""
    files = ((path, path.lstat()) for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(folder)): (seen.st_size, int(seen.st_mtime)) for path, seen in files}


class _Heard:
    """Reads rsync's progress: `  1,234,567  12%  ...` after each carriage return."""

    def __init__(self, on_progress: Listener) -> None:
        self._listener, self._rest = on_progress, b""

    def __call__(self, piece: bytes) -> None:
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + piece)
        for line in lines:
            if progress := _PROGRESS.match(line):
                byte_count = int(progress[1].replace(b",", b""))
                self._listener(UploadProgress(byte_count=byte_count, percent=int(progress[2])))


class _Counted:
    """A stream that counts what is read of it."""

    def __init__(self, read: Callable[[int], bytes], on_progress: Listener) -> None:
        self._read, self._listener, self._byte_count = read, on_progress, 0

    def read(self, size: int, /) -> bytes:
        piece = self._read(size)
        self._byte_count += len(piece)
        if piece:
            self._listener(UploadProgress(byte_count=self._byte_count))
        return piece
