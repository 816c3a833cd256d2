"""`inv vm.*`: the build VM itself, and an engine on it whose data is on the share."""

import json
import time

from invoke.context import Context

from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host import check
from remote.image import engine, vm_info, workdir
from remote.image.vm_agent.secure_dir import NOT_OURS
from tasks.cli.flags import number
from tasks.clients.build_vm import build_vm, tmpdir_on
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError
from tasks.settings.load import load

MOUNT = "/var/lib/qlora-fleet-engine"
SOCKET = "/run/qlora-fleet-engine.sock"
LOG = "/var/log/qlora-fleet-engine.log"
UP_SEC = 900.0  # mkfs on a busy share, and dockerd's first start


def check_vm(context: Context, tmpdir: str | None) -> None:
    settings = load(context)
    began = time.monotonic()
    with build_vm(settings, "inv vm.check") as host:
        facts = vm_info.observe(host)
        took = time.monotonic() - began
        version = ".".join(map(str, facts.python))
        print(f"{host.name}: connected in {took:.2f} s")
        print(f"  {facts.system}, kernel {facts.kernel}, {facts.machine}, Python {version}")
        print(f"  {facts.cores} cores, {facts.memory_bytes / 1e9:.1f} GB of memory")
        print(f"  user {facts.user} in {', '.join(facts.groups)}; home {facts.home}")
        if facts.python[:2] >= vm_info.PYTHON_AT_LEAST:
            for place in engine.disk_info(host, (facts.home, tmpdir_on(settings, host, tmpdir)), []).places:
                state = "" if place.exists else ", not there yet"
                may = "writable" if place.writable else "not writable for this user"
                print(f"  {place.path}: {place.free_bytes / 1e9:.1f} GB free on {place.kind}, {may}{state}")
    problems = facts.problems()
    for problem in problems:
        print(f"  ! {problem}")
    if problems:
        raise TaskFailed(f"{host.name}: cannot be used as it is; {problems[0]}")


def start_engine(context: Context, tmpdir: str | None, size_gb: str) -> None:
    """Start an engine whose data-root is an ext4 file on the share, loop-mounted.

    For VMs whose own disk is too small, or whose data-root is on NFS, where BuildKit cannot run. The VM's own engine is
    not touched. Repeat the command after a reboot: it brings everything back.
    """
    settings = load(context)
    size = number("vm.engine: --size-gb", size_gb, "a number from 1 to 100000", lambda given: 1 <= given <= 100_000)
    with build_vm(settings, "inv vm.engine") as host:
        tmp = tmpdir_on(settings, host, tmpdir)
        asked = {
            "owner": workdir.claim(host, tmp),
            "file": f"{workdir.home_below(tmp)}/engine.ext4",
            "size_bytes": int(size * 1e9),
            "mount": MOUNT,
            "socket": SOCKET,
            "log": LOG,
            "group": "docker",
        }
        who = Command(argv=("id", "-u"))
        is_root = check(host, who, host.run(who, timeout_sec=60.0)).stdout.strip() == b"0"
        root = () if is_root else ("sudo", "-n")
        command = Command(
            argv=(*root, *inline_command(host, "remote.image.vm_agent.scripts.engine", json.dumps(asked)).argv)
        )
        completed = host.run(command, timeout_sec=UP_SEC)
        if completed.exit_code != 0:
            lines = completed.stderr.decode(errors="replace").strip().splitlines() or [f"exit {completed.exit_code}"]
            raise (ConfirmationRequired if completed.exit_code == NOT_OURS else UsageError)(f"{host.name}: {lines[-1]}")
        facts = json.loads(completed.stdout)
        made = "made" if facts["made"] else "was there"
        state = "started" if facts["started"] else "was running"
        print(f"{host.name}: {asked['file']} {made}, mounted at {MOUNT}, {facts['free_bytes'] / 1e9:.1f} GB free")
        print(f"engine {state}; to build with it, set image.engine: unix://{SOCKET} and image.network: host")
