"""The build VM as it is, in one round trip: system, processor, Python, user. Disks are `remote.image.engine.look`'s."""

from __future__ import annotations

import json
from dataclasses import dataclass

from remote.hosts.delivery import once
from remote.hosts.host import AddressWrong, Host, HostUnreachable, check

PYTHON_AT_LEAST = (3, 9)
MACHINE = "x86_64"  # the GPU nodes' processor; an image built on another one does not start there
_ASK_SEC = 60.0


@dataclass(frozen=True, kw_only=True)
class VmFacts:
    """What the VM says of itself. `machine` is the processor's name as `uname -m` has it."""

    system: str
    kernel: str
    machine: str
    python: tuple[int, int, int]
    user: str
    groups: tuple[str, ...]
    home: str
    cores: int
    memory_bytes: int

    def problems(self) -> tuple[str, ...]:
        """What keeps this VM from building and fetching, each with its remedy."""
        found = []
        if self.python[:2] < PYTHON_AT_LEAST:
            version = ".".join(map(str, self.python))
            found.append(f"its python3 is {version}, 3.9 or newer is needed: install one, and let python3 mean it")
        if self.machine != MACHINE:
            found.append(f"it is {self.machine}, the GPU nodes are {MACHINE}: an image built here does not start there")
        return tuple(found)


def observe(host: Host) -> VmFacts:
    """Ask the VM. Raises AddressWrong where it has no Python at all, HostUnreachable, CommandFailed."""
    command = once(host, "remote.image.onvm.scripts.facts")
    completed = host.run(command, timeout_sec=_ASK_SEC)
    if completed.exit_code in (126, 127):
        raise AddressWrong(f"{host.name}: has no {host.python[0]}; install Python 3.9 or newer there")
    try:
        said = json.loads(check(host, command, completed).stdout)
    except ValueError:
        raise HostUnreachable(f"{host.name}: its description of itself was cut short") from None
    python = tuple(said.pop("python"))
    return VmFacts(**{**said, "groups": tuple(said["groups"])}, python=python)
