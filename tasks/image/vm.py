"""`inv vm.*`: free the disk of the build VM's engine, start an engine with its data on a shared file system."""

import dataclasses
import json
from typing import Any

from invoke.context import Context

from bench.records.units import format_gb
from remote.agent.shared.secure_dir import EXIT_FOREIGN_OWNER
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host_protocol import parse_json
from remote.image import engine, vm_jobs
from remote.image import plan as buildplan
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command
from tasks.cli.terminal import confirm
from tasks.clients.build_vm import build_vm, resolve_tmpdir
from tasks.errors import ConfirmationRequired, UsageError, escape_controls
from tasks.image import vm_work
from tasks.image.build import engine_client, registry_repository
from tasks.settings.layers import load

MOUNT = "/var/lib/qlora-fleet-engine"
SOCKET = "/run/qlora-fleet-engine.sock"
BRIDGE = "qlora-fleet0"
DEFAULT_SIZE_GB = 150.0
LOG = "/var/log/qlora-fleet-engine.log"
START_TIMEOUT_SEC = 900.0  # covers mkfs on a busy share and dockerd's first start


def prune_vm(context: Context, *, dry_run: bool, yes: bool) -> CommandResult | None:
    """Remove the engine's unused build cache, and images of earlier builds that have no name of their own."""
    settings, command = load(context), format_command("vm.prune", yes=yes)
    with build_vm(settings, command) as host, engine.connect(host, engine_client(settings)) as vm_engine:
        usage = vm_engine.usage(buildplan.BUILD_LABEL, registry_repository(settings))
        image_bytes = sum(usage.old_images.values())
        lines = [
            f"{host.name}: frees {format_gb(usage.prunable_bytes, 2)}; the next build repeats its steps",
            f"  build cache  {format_gb(usage.unused_cache_bytes, 2)}",
            f"  {formatting.count(len(usage.old_images), 'old image')}  {format_gb(image_bytes, 2)}",
            *(f"    {image_id[7:19]}  {format_gb(size, 2)}" for image_id, size in usage.old_images.items()),
        ]
        if dry_run:
            return plan_result(lines, host=host.name, **dataclasses.asdict(usage))
        if (job := vm_jobs.running_job(vm_jobs.create_agent(host))) is not None:
            raise vm_work.busy_error(job, command)
        print(*map(escape_controls, lines), sep="\n", flush=True)
        if not yes and not confirm(f"Remove them on {host.name}?"):
            raise ConfirmationRequired("nothing was removed", remedy="pass --yes to confirm")
        print(f"freed {format_gb(vm_engine.prune(usage), 2)}")
    return None


def start_engine(
    context: Context, tmpdir: str | None, size_gb: float | None, *, dry_run: bool = False
) -> CommandResult | None:
    """Start an engine whose data-root is an ext4 file on the share, loop-mounted.

    Meant for VMs whose own disk is too small, or whose data-root is on NFS, where BuildKit cannot run. The VM's own
    engine and its network are not touched. Rerun the command after a reboot to restore mount and engine.
    """
    settings = load(context)
    command_line = format_command("vm.engine", tmpdir=tmpdir, size_gb=size_gb, dry_run=dry_run)
    with build_vm(settings, command_line) as host:
        workdir = vm_jobs.workdir_path(resolve_tmpdir(settings, host, tmpdir))
        file, size = f"{workdir}/engine.ext4", size_gb or DEFAULT_SIZE_GB
        if dry_run:
            lines = [f"file    {file}, at most {size:g} GB", f"mount   {MOUNT}", f"socket  {SOCKET}"]
            return plan_result([f"on {host.name}:", *lines], file=file, size_gb=size, mount=MOUNT, socket=SOCKET)
        request: dict[str, Any] = {
            "owner": vm_jobs.claim(host, workdir),
            "file": file,
            "size_bytes": int(size * 1e9),
            "is_size_given": size_gb is not None,
            "mount": MOUNT,
            "socket": SOCKET,
            "log": LOG,
            "group": "docker",
            "bridge": BRIDGE,
        }
        prefix = () if request["owner"] == 0 else ("sudo", "-n")
        command = Command(
            argv=(*prefix, *inline_command(host, "remote.agent.scripts.engine", json.dumps(request)).argv)
        )
        completed = host.run(command, timeout_sec=START_TIMEOUT_SEC)
        if completed.exit_code != 0:
            lines = completed.stderr.decode(errors="replace").strip().splitlines() or [f"exit {completed.exit_code}"]
            root = "a separate engine needs root" if prefix and lines[-1].startswith("sudo:") else ""
            remedy = "allow this user to run `sudo -n python3` on the VM, or log in as root" if root else ""
            raise (ConfirmationRequired if completed.exit_code == EXIT_FOREIGN_OWNER else UsageError)(
                f"{host.name}: {root or lines[-1]}", remedy=remedy
            )
        facts: dict[str, Any] = parse_json(host, completed.stdout, "the output of the engine's start")
        file_state = "created" if facts["made"] else "already there"
        engine_state = "started" if facts["started"] else "already running"
        print(f"{host.name}: {file} {file_state}, mounted at {MOUNT}, {format_gb(facts['free_bytes'])} free")
        print(f"engine {engine_state}; to build with it, set image.engine: unix://{SOCKET} and image.network: host")
    return None
