"""The build VM as it is, in one round trip: system, processor, Python, user. Disks are `remote.image.engine.look`'s."""

from __future__ import annotations

import json
from dataclasses import dataclass

from remote.hosts.command import Command
from remote.hosts.host import AddressWrong, Host, HostUnreachable, check

PYTHON_AT_LEAST = (3, 9)
MACHINE = "x86_64"  # the GPU nodes' processor; an image built on another one does not start there
_ASK_SEC = 60.0
# Runs on any Python 3, so that one that is too old can be told from none.
_LOOK = """
import grp, json, os, platform, pwd, sys
system = ""
try:
    for line in open("/etc/os-release"):
        if line.startswith("PRETTY_NAME="):
            system = line.split("=", 1)[1].strip().strip('"')
except OSError:
    pass
groups = []
for number in set(os.getgroups() + [os.getgid()]):
    try:
        groups.append(grp.getgrgid(number).gr_name)
    except KeyError:
        groups.append(str(number))
try:
    user = pwd.getpwuid(os.getuid()).pw_name
except KeyError:
    user = str(os.getuid())
memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
print(json.dumps({"system": system or platform.system(), "kernel": platform.release(), "machine": platform.machine(),
                  "python": list(sys.version_info[:3]), "user": user, "groups": sorted(groups),
                  "home": os.path.expanduser("~"), "cores": os.cpu_count(), "memory_bytes": memory}))
"""


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
    command = Command(argv=(*host.python, "-c", _LOOK))
    completed = host.run(command, timeout_sec=_ASK_SEC)
    if completed.exit_code in (126, 127):
        raise AddressWrong(f"{host.name}: has no {host.python[0]}; install Python 3.9 or newer there")
    try:
        said = json.loads(check(host, command, completed).stdout)
    except ValueError:
        raise HostUnreachable(f"{host.name}: its description of itself was cut short") from None
    python = tuple(said.pop("python"))
    return VmFacts(**{**said, "groups": tuple(said["groups"])}, python=python)
