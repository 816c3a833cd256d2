"""This machine as a host: several workers on one laptop, each with its own work folder.

Output of git commands about the project.
"""

import getpass
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from bench.records.validation import setting
from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, Connector, FleetRequest, HostError, InvalidAddress, RunOptions
from remote.hosts.local_program import CannotStart, run_program

_TIMEOUT_SEC = 20.0


def run_git(root: Path, *arguments: str) -> str | None:
    """Return the stripped output of a git command, or None without git, without a repository, or after a timeout.

    A folder inside a repository is not one: the package may be installed in an environment in another project's.
    """
    if not (root / ".git").exists():
        return None
    argv = ("git", "-C", str(root), *arguments)
    try:
        completed = run_program(argv, label="git", timeout_sec=_TIMEOUT_SEC)
    except (CannotStart, HostError):
        return None
    return completed.stdout.decode(errors="replace").strip() if completed.exit_code == 0 else None


def current_user() -> str:
    """Return user@host for messages to other operators. Several people may share one user of a machine."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user need not have a name
        return f"user {os.getuid()}@{socket.gethostname()}"


def expand_user(path: str | Path) -> Path:
    """Expand ~ to the home folder. The path stays as it is if that folder is unknown; no such file exists then.

    `Path.expanduser` would raise RuntimeError for `~.kube/config`, which means the home of a user called `.kube`.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


@dataclass(frozen=True, kw_only=True)
class LocalHost:
    """A worker on this machine. `workdir` is an absolute folder; it is created when first needed."""

    name: str
    workdir: str
    python: tuple[str, ...] = (sys.executable,)

    def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        """Run a command as in `Host.run`. A program that cannot be started ends with 127, as in a shell."""
        try:
            return run_program(
                command.argv,
                label=f"{self.name}: {command.brief()}",
                environment={**os.environ, **command.environment},
                folder=command.folder,
                umask=0o077,  # as over SSH: no other user of this machine may change our files
                **options,
            )
        except CannotStart as error:
            return Completed(exit_code=127, stderr=str(error).encode())


@dataclass(frozen=True, kw_only=True)
class LocalSection:
    """Used if fleet.kind is local."""

    folder: str = setting(".workers", "folder for the workers' files; relative paths start at this file's folder")
    threads: int = setting(
        1, "CPU threads per worker; more threads than idle cores are many times slower", ge=1, le=256
    )


def make_hosts(request: FleetRequest) -> list[LocalHost]:
    """Make workers on this machine, each with its own folder below `options.folder`."""
    folder = request.root / expand_user(request.options.folder)
    existing_path = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing_path.is_dir():
        raise InvalidAddress(f"fleet.local.folder: {existing_path} is a file", remedy="set it to a folder")
    return [LocalHost(name=name, workdir=str(folder / name)) for name in request.names]


CONNECTOR = Connector(
    name="local", is_local=True, is_cluster=False, silence_sec=0.0, max_streams=1024, make_hosts=make_hosts
)
