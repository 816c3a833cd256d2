"""Facts about the build VM, and problems with it."""

import dataclasses
import platform
import re
import sys

from remote.image import vm_jobs
from tests.support.hosts.local_fleet import LocalFleet


def test_an_old_python_and_another_processor_are_problems_with_a_remedy(local: LocalFleet) -> None:
    facts = vm_jobs.observe(local.host())
    assert (facts.python, facts.machine) == (sys.version_info[:3], platform.machine())
    assert dataclasses.replace(facts, machine="x86_64", python=(3, 9, 0)).problems() == ()
    python, machine = dataclasses.replace(facts, python=(3, 6, 8), machine="aarch64").problems()
    assert re.search(r"\b3\.6\.8\b.*\b3\.9\b", python.problem)
    assert python.remedy
    assert re.search(r"\baarch64\b.*\bx86_64\b", machine.problem)
    assert "build.host" in machine.remedy
