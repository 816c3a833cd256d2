"""`inv vm.engine`: an engine on the build VM whose bulk is on the share, in an ext4 file that is loop-mounted.

For VMs whose own disk is too small, or whose data-root is on NFS, where BuildKit cannot run. The VM's own engine is
not touched. Typed again it brings everything back, as after a reboot.
"""

from __future__ import annotations

import json

from invoke.context import Context
from invoke.tasks import task

from tasks.cli.flags import number
from tasks.errors import UsageError

MOUNT = "/var/lib/qlora-fleet-engine"
SOCKET = "/run/qlora-fleet-engine.sock"
LOG = "/var/log/qlora-fleet-engine.log"
UP_SEC = 900.0  # mkfs on a busy share, and dockerd's first start


@task(
    help={
        "tmpdir": "folder on the VM that holds the file, e.g. /mnt/fss (default: build.tmpdir)",
        "size-gb": "what the engine's data may grow to, in GB (default: 150)",
    }
)
def engine(context: Context, tmpdir: str | None = None, size_gb: str = "150") -> None:
    """Start an engine on the VM that keeps its data on the share."""
    from remote.hosts.command import Command
    from remote.hosts.delivery import once
    from remote.hosts.host import check
    from tasks.connect.buildvm import build_vm, tmpdir_on
    from tasks.settings import load as house

    settings = house.load(context)
    size = number("vm.engine: --size-gb", size_gb, "a number from 1 to 100000", lambda given: 1 <= given <= 100_000)
    with build_vm(settings, "inv vm.engine") as host:
        asked = {
            "file": f"{tmpdir_on(settings, host, tmpdir)}/qlora-fleet/engine.ext4",
            "size_bytes": int(size * 1e9),
            "mount": MOUNT,
            "socket": SOCKET,
            "log": LOG,
            "group": "docker",
        }
        who = Command(argv=("id", "-u"))
        is_root = check(host, who, host.run(who, timeout_sec=60.0)).stdout.strip() == b"0"
        root = () if is_root else ("sudo", "-n")
        command = Command(argv=(*root, *once(host, "remote.image.onvm.scripts.engine", json.dumps(asked)).argv))
        completed = host.run(command, timeout_sec=UP_SEC)
        if completed.exit_code != 0:
            said = completed.stderr.decode(errors="replace").strip().splitlines() or [f"exit {completed.exit_code}"]
            raise UsageError(f"{host.name}: {said[-1]}")
        facts = json.loads(completed.stdout)
        made = "made" if facts["made"] else "was there"
        state = "started" if facts["started"] else "was running"
        print(f"{host.name}: {asked['file']} {made}, mounted at {MOUNT}, {facts['free_bytes'] / 1e9:.1f} GB free")
        print(f"engine {state}; to build with it, set image.engine: unix://{SOCKET} and image.network: host")
