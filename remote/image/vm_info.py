"""What the build VM is, in one round trip: system, processor, Python, user. `engine.look` reads its disks."""

from dataclasses import dataclass

from remote.hosts.bundle import inline_command
from remote.hosts.host import Host, InvalidAddress, check, parsed

PYTHON_AT_LEAST = (3, 9)
MACHINE = "x86_64"  # the GPU nodes' processor; an image built on another one does not start there
_ASK_SEC = 60.0


@dataclass(frozen=True, kw_only=True)
class VmFacts:
    """What the VM is. `machine` is the processor as `uname -m` names it, `clock` its time in seconds since 1970."""

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

    def problems(self) -> tuple[str, ...]:
        """Why this VM cannot build or fetch, each reason with its remedy."""
        problems = []
        if self.python[:2] < PYTHON_AT_LEAST:
            version = ".".join(map(str, self.python))
            problems.append(f"its python3 is {version}, 3.9 or newer is needed; install one and make it python3")
        if self.machine != MACHINE:
            problems.append(
                f"it is {self.machine}: the GPU nodes, {MACHINE}, cannot start its images; name another build.host"
            )
        return tuple(problems)


def observe(host: Host) -> VmFacts:
    """Ask the VM. Raises AddressWrong if it has no Python, HostUnreachable, CommandFailed."""
    command = inline_command(host, "remote.image.vm_agent.scripts.vm_info")
    completed = host.run(command, timeout_sec=_ASK_SEC)
    if completed.exit_code in (126, 127):
        raise InvalidAddress(f"{host.name}: has no {host.python[0]}; install Python 3.9 or newer there")
    facts = parsed(host, check(host, command, completed).stdout, "its description of itself")
    return VmFacts(**{**facts, "groups": tuple(facts["groups"]), "python": tuple(facts["python"])})
