"""What the build VM says of itself, and what of it is a problem."""

import dataclasses
import os
import platform
import sys

import pytest

from remote.hosts.command import Command
from remote.hosts.host import Completed, HostUnreachable, InvalidAddress
from remote.hosts.local import LocalHost
from remote.image import vm_info
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet


def test_this_machine_describes_itself(local: LocalFleet) -> None:
    facts = vm_info.observe(local.host())
    assert facts.python == sys.version_info[:3]
    assert (facts.machine, facts.kernel, facts.cores) == (platform.machine(), platform.release(), os.cpu_count())
    assert facts.home == os.path.expanduser("~")
    assert facts.memory_bytes > 1 << 28


def test_an_old_python_and_another_processor_are_problems_with_a_remedy(local: LocalFleet) -> None:
    facts = dataclasses.replace(vm_info.observe(local.host()), machine="x86_64", python=(3, 9, 0))
    assert facts.problems() == ()
    old = dataclasses.replace(facts, python=(3, 6, 8), machine="aarch64").problems()
    assert old[0].startswith("its python3 is 3.6.8, 3.9 or newer is needed")
    assert old[1].startswith("it is aarch64: the GPU nodes, x86_64, cannot start its images; name")


def test_a_vm_without_python_is_told_from_one_that_does_not_answer(local: LocalFleet) -> None:
    with pytest.raises(InvalidAddress, match="has no /no/python; install Python"):
        vm_info.observe(LocalHost(name="vm", workdir=str(local.folder), python=("/no/python",)))

    class Short(CuttableHost):
        def run(self, command: Command, **rest: object) -> Completed:
            return dataclasses.replace(super().run(command, **rest), stdout=b'{"system": ')  # type: ignore[arg-type]

    with pytest.raises(HostUnreachable, match="was cut short"):
        vm_info.observe(Short(host=local.host()))
