"""What the tests of transfers have in common: folders of files, and a wire that breaks where one wants."""

import random
from pathlib import Path
from typing import Self, Unpack

import pytest

from remote.hosts.command import Command
from remote.hosts.host import ByteReader, Completed, HostUnreachable, RunOptions
from remote.jobs import transfer
from remote.jobs.agent import Agent
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet


def fill(folder: Path, sizes: dict[str, int], seed: int = 1) -> dict[str, bytes]:
    """Make files of these sizes with random content; what they hold."""
    chooser, content = random.Random(seed), {}
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content[name] = chooser.randbytes(size)
        path.write_bytes(content[name])
    return content


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, partial ones included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def move(direction: str, agent: Agent, source: Path, target: Path) -> transfer.Moved:
    if direction == "pull":
        return pull(agent, str(source), target)
    return push(agent, source, str(target))


# Not a push over SSH: it has 2 MiB in flight, more than these files; test_ssh_faults.py cuts a cable under larger ones.
CUT_UNDER_SMALL_FILES = pytest.mark.parametrize(
    ("local", "direction"), [("local", "pull"), ("local", "push"), ("ssh", "pull")], indirect=["local"]
)


def put_program(local: LocalFleet) -> None:
    """From now on the host has our program, and the first call with `send` is the one that moves bytes."""
    local.agent().holder("/no/slot")


class Narrow(CuttableHost):
    """A wire whose n-th stream of files breaks after so many bytes: of the whole answer, or of the bulk sent."""

    def breaks(self, after: list[int]) -> Self:
        self.after = after
        return self

    def run(self, command: Command, **how: Unpack[RunOptions]) -> Completed:
        if self.after and {"send", "receive"} & set(command.argv):
            left = self.after.pop(0)
            if "send" in command.argv:
                self.cuts = iter([left])
            else:
                assert hasattr(how["stdin"], "read")
                how["stdin"] = Breaking(how["stdin"], left)
        return super().run(command, **how)


class Breaking:
    """A stream that breaks after `left` bytes of its bulk; the list of files before it passes."""

    def __init__(self, source: ByteReader, left: int) -> None:
        self._source, self._left, self._head = source, left, True

    def read(self, size: int, /) -> bytes:
        piece = self._source.read(size if self._head else min(size, self._left) or 1)
        if self._head:
            self._head = False
            return piece
        if self._left == 0:
            raise HostUnreachable("the stream broke")
        self._left -= len(piece)
        return piece
