"""`inv vm.*`: check the build VM, free its engine's disk, start an engine with its data on a shared file system."""

import dataclasses
import json
import time
from typing import Any

from invoke.context import Context

from bench.records.units import format_gb
from remote.agent.shared.secure_dir import EXIT_FOREIGN_OWNER
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host, parse_json
from remote.image import engine, vm_jobs
from remote.image import plan as buildplan
from remote.image.engine import EngineError, FolderInfo
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command
from tasks.cli.terminal import confirm
from tasks.clients.build_vm import build_vm, resolve_tmpdir, to_task_error
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError, escape_controls
from tasks.image import vm_work
from tasks.image.build import engine_client, registry_repository
from tasks.settings.layers import Settings, load

MOUNT = "/var/lib/qlora-fleet-engine"
SOCKET = "/run/qlora-fleet-engine.sock"
BRIDGE = "qlora-fleet0"
DEFAULT_SIZE_GB = 150.0
LOG = "/var/log/qlora-fleet-engine.log"
START_TIMEOUT_SEC = 900.0  # covers mkfs on a busy share and dockerd's first start


def check_vm(context: Context, tmpdir: str | None) -> CommandResult:
    settings, disks = load(context), tuple[FolderInfo, ...]()
    started_at, command = time.monotonic(), format_command("vm.check", tmpdir=tmpdir)
    with build_vm(settings, command) as host:
        facts = vm_jobs.observe(host)
        connect_sec = time.monotonic() - started_at
        version = ".".join(map(str, facts.python))
        print(f"{host.name}: connected in {connect_sec:.2f} s")
        print(f"  {facts.system}, kernel {facts.kernel}, {facts.machine}, Python {version}")
        print(f"  {facts.cores} cores, {format_gb(facts.memory_bytes)} of memory")
        print(f"  user {facts.user} in {', '.join(facts.groups)}; home {facts.home}")
        if facts.python[:2] >= vm_jobs.MIN_PYTHON:
            folders = (facts.home, resolve_tmpdir(settings, host, tmpdir))
            disks = engine.disk_info(host, folders).folders
        for disk in disks:
            state = "" if disk.exists else ", does not exist yet"
            access = "writable" if disk.writable else "not writable for this user"
            print(f"  {disk.path}: {format_gb(disk.free_bytes)} free on {disk.kind}, {access}{state}")
        problems, engine_facts = facts.problems(), None
        failure = TaskFailed(f"{host.name}: unusable", remedy=f"{problems[0]}") if problems else None
        try:
            engine_facts = _check_engine(settings, host, folders[1]) if disks else None
        except EngineError as error:
            failure = failure or to_task_error(error, command)
    for problem in problems:
        print(f"  ! {problem}")
    rows = [{"path": disk.path, "free_bytes": disk.free_bytes, "is_writable": disk.writable} for disk in disks]
    data = {"host": host.name, **dataclasses.asdict(facts), "disks": rows, "engine": engine_facts}
    return CommandResult(data=data, failure=failure)


def _check_engine(settings: Settings, host: Host, tmp_folder: str) -> dict[str, Any]:
    """Print what the engine is and uses, and return it as JSON. Raises EngineError if a build would, and HostError."""
    with engine.connect(host, engine_client(settings)) as vm_engine:
        facts, usage = vm_engine.observe(), vm_engine.usage(buildplan.BUILD_LABEL, registry_repository(settings))
    (root,) = engine.disk_info(host, (facts.data_root,)).folders
    print(f"  engine {facts.version}, API {facts.api_version}, {facts.storage_driver}, with BuildKit")
    print(f"  {root.path}: {format_gb(root.free_bytes)} free on {root.kind}")
    images, cache = format_gb(usage.image_bytes, 2), format_gb(usage.cache_bytes, 2)
    print(f"  {usage.image_count} images, {images}; build cache, {cache}")
    print(f"  `inv vm.prune` frees {format_gb(usage.prunable_bytes, 2)}")
    buildplan.check_data_root(root, facts, tmp_folder)
    return {**dataclasses.asdict(facts), **dataclasses.asdict(usage), "prunable_bytes": usage.prunable_bytes}


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
