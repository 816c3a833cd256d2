"""Files that change while they are read: nothing unverified is stored."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from remote.jobs.job import Agent
from remote.jobs.transfer import ChecksumMismatch, pull
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet
from tests.support.hosts.migration import read_tree, write_random_files


class InterferingHost(CuttableHost):
    """A host on which a function runs once the first bytes of a stream have arrived."""

    def during(self, act: Callable[[], object], times: int = 1) -> InterferingHost:
        self.act, self.left = act, times
        return self

    def run(self, command, *, on_stdout=None, **rest):  # type: ignore[no-untyped-def]
        calls = []

        def on_chunk(chunk: bytes) -> None:
            if "send" in command.argv and self.left and not calls:
                self.left -= 1
                calls.append(self.act())
            on_stdout(chunk)

        return super().run(command, on_stdout=None if on_stdout is None else on_chunk, **rest)


SEVERAL_PIPES = 12 << 20  # more than the pipes between host and reader hold, so that reading continues meanwhile


def test_a_file_that_grows_while_it_is_read_arrives_as_it_was_when_opened(local: LocalFleet) -> None:
    source, target = local.folder / "source", local.folder / "target"
    content = write_random_files(source, {"log": SEVERAL_PIPES})["log"]

    def grow() -> None:
        with (source / "log").open("ab") as file:
            file.write(b"one line more\n")

    result = pull(Agent(InterferingHost(host=local.host()).during(grow)), str(source), target)
    assert ((target / "log").read_bytes() == content, result.byte_count) == (True, SEVERAL_PIPES)


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_rewritten_while_it_is_read_is_requested_once_more(local: LocalFleet, times: int) -> None:
    source, target = local.folder / "source", local.folder / "target"
    write_random_files(source, {"a": SEVERAL_PIPES})
    rng = random.Random(1)

    def rewrite() -> None:
        """Write other bytes at both ends of the file, so that a reader in its middle gets a mixture."""
        with (source / "a").open("r+b") as file:
            file.write(rng.randbytes(13))
            file.seek(-13, 2)
            file.write(rng.randbytes(13))

    host = InterferingHost(host=local.host()).during(rewrite, times=times)
    if times == 1:
        pull(Agent(host), str(source), target)
        assert read_tree(target) == read_tree(source)
        return
    with pytest.raises(ChecksumMismatch, match=r"^a: .* twice"):
        pull(Agent(host), str(source), target)
    assert read_tree(target) == {}
