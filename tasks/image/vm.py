"""`inv vm.*`: the build VM itself."""

from __future__ import annotations

import time

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import TaskFailed


@task(help={"tmpdir": "folder on the VM for models, context and archives, e.g. /mnt/fss (default: build.tmpdir)"})
def check(context: Context, tmpdir: str | None = None) -> None:
    """Connect to the build VM and say what it is."""
    from remote.image import engine, vm
    from tasks.connect.buildvm import build_vm, tmpdir_on
    from tasks.settings import load as house

    settings = house.load(context)
    began = time.monotonic()
    with build_vm(settings, "inv vm.check") as host:
        facts = vm.observe(host)
        took = time.monotonic() - began
        version = ".".join(map(str, facts.python))
        print(f"{host.name}: connected in {took:.2f} s")
        print(f"  {facts.system}, kernel {facts.kernel}, {facts.machine}, Python {version}")
        print(f"  {facts.cores} cores, {facts.memory_bytes / 1e9:.1f} GB of memory")
        print(f"  user {facts.user} in {', '.join(facts.groups)}; home {facts.home}")
        if facts.python[:2] >= vm.PYTHON_AT_LEAST:
            for place in engine.look(host, (facts.home, tmpdir_on(settings, host, tmpdir)), []).places:
                state = "" if place.exists else ", not there yet"
                may = "writable" if place.writable else "not writable for this user"
                print(f"  {place.path}: {place.free_bytes / 1e9:.1f} GB free on {place.kind}, {may}{state}")
    problems = facts.problems()
    for problem in problems:
        print(f"  ! {problem}")
    if problems:
        raise TaskFailed(f"{host.name}: cannot be used as it is; {problems[0]}")
