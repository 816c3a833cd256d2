"""Facts about the build VM, read in one round trip: system, processor, Python, user. For its disks see `engine`."""

import posixpath
from dataclasses import dataclass
from typing import Any

from bench.records.status import Failure
from remote.agent.shared.secure_dir import EXIT_FOREIGN_OWNER
from remote.hosts.base import Host, HostError, InvalidAddress, check, parse_json
from remote.hosts.bundle import inline_command

FOLDER_NAME = "qlora-fleet"
_CLAIM_TIMEOUT_SEC = 60.0


class WorkdirUnsafe(HostError):
    """Error raised if another user owns the work directory or may write to it; the message has owner and path."""


class WorkdirError(HostError):
    """Error raised if the work directory cannot be created."""


def workdir_path(tmpdir: str) -> str:
    return posixpath.join(tmpdir, FOLDER_NAME)


def claim(host: Host, tmpdir: str, *, create: bool = True) -> int:
    """Check that this user owns the work directory below `tmpdir`, and `create` it if missing. Returns the user's uid.

    Without `create` a missing folder is not an error. Raises WorkdirUnsafe, WorkdirError and like `Host.run`.
    """
    folder = workdir_path(tmpdir)
    command = inline_command(host, "remote.agent.shared.secure_dir", folder, "make" if create else "look")
    completed = host.run(command, timeout_sec=_CLAIM_TIMEOUT_SEC)
    if completed.exit_code != 0:
        complaint = command.tail(completed.stderr.decode(errors="replace"), lines=1)
        kind = WorkdirUnsafe if completed.exit_code == EXIT_FOREIGN_OWNER else WorkdirError
        raise kind(f"{host.name}: {complaint or f'{folder}: exit {completed.exit_code}'}")
    return parse_json(host, completed.stdout, "the owner of its folder", lambda document: int(document["owner"]))


MIN_PYTHON = (3, 9)
REQUIRED_MACHINE = "x86_64"  # the GPU nodes' processor; they cannot start an image built on another one
_TIMEOUT_SEC = 60.0


@dataclass(frozen=True, kw_only=True)
class VmFacts:
    """Facts about the VM. `machine` is the processor as in `uname -m`, `clock` the VM's Unix time."""

    system: str
    kernel: str
    machine: str
    python: tuple[int, int, int]
    user: str
    groups: tuple[str, ...]
    home: str
    cores: int
    memory_bytes: int
    clock: float

    def problems(self) -> tuple[Failure, ...]:
        """List the reasons why this VM cannot build or fetch, each with its remedy."""
        problems = []
        if self.python[:2] < MIN_PYTHON:
            version = ".".join(map(str, self.python))
            problems.append(
                Failure(f"its python3 is {version}, 3.9 or newer is required", remedy="install a newer one as python3")
            )
        if self.machine != REQUIRED_MACHINE:
            problem = f"its processor is {self.machine}, but the GPU nodes only start images for {REQUIRED_MACHINE}"
            problems.append(Failure(problem, remedy="set build.host to another VM"))
        return tuple(problems)


def observe(host: Host) -> VmFacts:
    """Query the VM. Raises InvalidAddress if it has no Python, HostUnreachable, CommandFailed."""
    command = inline_command(host, "remote.agent.scripts.vm_info")
    completed = host.run(command, timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code in (126, 127):
        raise InvalidAddress(f"{host.name}: {host.python[0]} not found", remedy="install Python 3.9 or newer there")

    def to_facts(fields: dict[str, Any]) -> VmFacts:
        return VmFacts(**{**fields, "groups": tuple(fields["groups"]), "python": tuple(fields["python"])})

    return parse_json(host, check(host, command, completed).stdout, "the output of vm_info", to_facts)
