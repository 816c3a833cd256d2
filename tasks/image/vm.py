"""`inv vm.*`: check the build VM, start a container engine with its data on a shared file system."""

import dataclasses
import json
import time
from typing import Any

from invoke.context import Context

from bench.records.units import format_gb
from remote.agent.shared.secure_dir import EXIT_FOREIGN_OWNER
from remote.hosts.base import check, parse_json
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.image import engine, vm_jobs
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command
from tasks.clients.build_vm import build_vm, resolve_tmpdir
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError
from tasks.settings.load import load

MOUNT = "/var/lib/qlora-fleet-engine"
SOCKET = "/run/qlora-fleet-engine.sock"
BRIDGE = "qlora-fleet0"
DEFAULT_SIZE_GB = 150.0
LOG = "/var/log/qlora-fleet-engine.log"
START_TIMEOUT_SEC = 900.0  # covers mkfs on a busy share and dockerd's first start


def check_vm(context: Context, tmpdir: str | None) -> CommandResult:
    settings, disks = load(context), list[dict[str, Any]]()
    started_at = time.monotonic()
    with build_vm(settings, format_command("vm.check", tmpdir=tmpdir)) as host:
        facts = vm_jobs.observe(host)
        connect_sec = time.monotonic() - started_at
        version = ".".join(map(str, facts.python))
        print(f"{host.name}: connected in {connect_sec:.2f} s")
        print(f"  {facts.system}, kernel {facts.kernel}, {facts.machine}, Python {version}")
        print(f"  {facts.cores} cores, {format_gb(facts.memory_bytes)} of memory")
        print(f"  user {facts.user} in {', '.join(facts.groups)}; home {facts.home}")
        if facts.python[:2] >= vm_jobs.MIN_PYTHON:
            for disk in engine.disk_info(host, (facts.home, resolve_tmpdir(settings, host, tmpdir)), []).folders:
                state = "" if disk.exists else ", does not exist yet"
                access = "writable" if disk.writable else "not writable for this user"
                print(f"  {disk.path}: {format_gb(disk.free_bytes)} free on {disk.kind}, {access}{state}")
                disks.append({"path": disk.path, "free_bytes": disk.free_bytes, "is_writable": disk.writable})
    problems = facts.problems()
    for problem in problems:
        print(f"  ! {problem}")
    failure = TaskFailed(f"{host.name}: unusable", remedy=f"{problems[0]}") if problems else None
    return CommandResult(data={"host": host.name, **dataclasses.asdict(facts), "disks": disks}, failure=failure)


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
        tmp_folder = resolve_tmpdir(settings, host, tmpdir)
        if dry_run:
            file, size = f"{vm_jobs.workdir_path(tmp_folder)}/engine.ext4", size_gb or DEFAULT_SIZE_GB
            lines = [f"file    {file}, at most {size:g} GB", f"mount   {MOUNT}", f"socket  {SOCKET}"]
            return plan_result([f"on {host.name}:", *lines], file=file, size_gb=size, mount=MOUNT, socket=SOCKET)
        request = {
            "owner": vm_jobs.claim(host, tmp_folder),
            "file": f"{vm_jobs.workdir_path(tmp_folder)}/engine.ext4",
            "size_bytes": int((size_gb or DEFAULT_SIZE_GB) * 1e9),
            "is_size_given": size_gb is not None,
            "mount": MOUNT,
            "socket": SOCKET,
            "log": LOG,
            "group": "docker",
            "bridge": BRIDGE,
        }
        id_command = Command(argv=("id", "-u"))
        is_root = check(host, id_command, host.run(id_command, timeout_sec=60.0)).stdout.strip() == b"0"
        prefix = () if is_root else ("sudo", "-n")
        command = Command(
            argv=(*prefix, *inline_command(host, "remote.agent.scripts.engine", json.dumps(request)).argv)
        )
        completed = host.run(command, timeout_sec=START_TIMEOUT_SEC)
        if completed.exit_code != 0:
            lines = completed.stderr.decode(errors="replace").strip().splitlines() or [f"exit {completed.exit_code}"]
            raise (ConfirmationRequired if completed.exit_code == EXIT_FOREIGN_OWNER else UsageError)(
                f"{host.name}: {lines[-1]}"
            )
        facts: dict[str, Any] = parse_json(host, completed.stdout, "the output of the engine's start")
        file_state = "created" if facts["made"] else "already there"
        engine_state = "started" if facts["started"] else "already running"
        print(f"{host.name}: {request['file']} {file_state}, mounted at {MOUNT}, {format_gb(facts['free_bytes'])} free")
        print(f"engine {engine_state}; to build with it, set image.engine: unix://{SOCKET} and image.network: host")
    return None
