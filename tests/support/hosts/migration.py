"""Helpers for tests of file transfers: folders of files, and a connection that breaks at a given byte."""

import random
from pathlib import Path
from typing import Self, Unpack

import pytest

from remote.hosts.base import ByteReader, Completed, HostUnreachable, RunOptions
from remote.hosts.command import Command
from remote.jobs import transfer
from remote.jobs.agent import Agent
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet


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


# Without a push over SSH, which has 2 MiB in flight, more than these files; test_ssh_faults.py covers larger files.
CUT_UNDER_SMALL_FILES = pytest.mark.parametrize(
    ("local", "direction"), [("local", "pull"), ("local", "push"), ("ssh", "pull")], indirect=["local"]
)


def install_host_program(local: LocalFleet) -> None:
    """Install the agent's program on the host, so that the first command with `send` transfers file content."""
    local.agent().holder("/no/slot")


class BreakingHost(CuttableHost):
    """Host whose n-th file stream breaks after `after[n]` bytes: of the whole response, or of the content sent."""

    def break_after(self, after: list[int]) -> Self:
        self.after = after
        return self

    def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        if self.after and {"send", "receive"} & set(command.argv):
            left = self.after.pop(0)
            if "send" in command.argv:
                self.cuts = iter([left])
            else:
                assert hasattr(options["stdin"], "read")
                options["stdin"] = BreakingStream(options["stdin"], left)
        return super().run(command, **options)


class BreakingStream:
    """Stream that breaks after `left` bytes of content, which follows the list of files."""

    def __init__(self, source: ByteReader, left: int) -> None:
        self._source, self._left, self._head = source, left, True

    def read(self, size: int, /) -> bytes:
        chunk = self._source.read(size if self._head else min(size, self._left) or 1)
        if self._head:
            self._head = False
            return chunk
        if self._left == 0:
            raise HostUnreachable("the stream broke")
        self._left -= len(chunk)
        return chunk
