"""Helpers for tests of file transfers: folders of files."""

import random
from pathlib import Path

from remote.jobs import transfer
from remote.jobs.job import Agent
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import LocalFleet


def write_random_files(folder: Path, sizes: dict[str, int], seed: int = 1) -> dict[str, bytes]:
    """Write files of these sizes with random content; return the content by name."""
    chooser, content = random.Random(seed), {}
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content[name] = chooser.randbytes(size)
        path.write_bytes(content[name])
    return content


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below `folder`, including partial files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def transfer_files(direction: str, agent: Agent, source: Path, target: Path) -> transfer.TransferResult:
    if direction == "pull":
        return pull(agent, str(source), target)
    return push(agent, source, str(target))


def install_host_program(local: LocalFleet) -> None:
    """Install the agent's program on the host, so that the first command with `send` transfers file content."""
    local.agent().holder("/no/slot")
