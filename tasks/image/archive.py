"""`inv image.archive` and `image.load`: save and load the image as a file, for air-gapped sites."""

import shlex
from dataclasses import replace

from invoke.context import Context

from bench.records.units import format_gb
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host
from remote.image import engine
from remote.image.vm_jobs import VmWork
from remote.jobs.job import Agent
from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.build_vm import build_vm
from tasks.errors import UsageError
from tasks.image import build_profiles, vm_work
from tasks.image.build import engine_client
from tasks.settings.layers import Settings, load


def save_archive(context: Context, path: str, *, dry_run: bool = False) -> CommandResult | None:
    settings = load(context)
    name, work = build_profiles.image_name(settings), plan_archive(settings, "archive", path)
    with build_vm(settings, work.command) as host:
        with engine.connect(host, engine_client(settings)) as vm_engine:
            image, data_root = vm_engine.image(name), vm_engine.observe().data_root
        if dry_run:
            size = format_gb(image.size, 2)
            line = f"archive  {name} ({size} unpacked) into {path} on {host.name}"
            return plan_result([line], image_id=image.image_id, unpacked_bytes=image.size, folder=path)

        def prepare(_: Agent) -> None:
            _check_free_space(host, image.size, path, data_root)

        request = {**work.request, "image": name, "image_id": image.image_id}
        outcome = vm_work.run(host, replace(work, request=request), prepare)
    facts = outcome.facts
    compressor = facts["compressor"]
    result = "already there" if compressor is None else f"by {compressor}, {outcome.wall_time_sec:.1f} s"
    size = format_gb(facts["size_bytes"], 3)
    print(f"{facts['path']} {size}, {result}; check it anywhere: sha256sum --check FILE.sha256")
    return None


def load_archive(context: Context, path: str, *, dry_run: bool = False) -> CommandResult | None:
    settings = load(context)
    work, files = plan_archive(settings, "load", path), [path, f"{path}.sha256"]
    with build_vm(settings, work.command) as host:
        if not dry_run:
            facts = vm_work.run(host, work, lambda _: None).facts
            print(f"{path} is loaded: {', '.join(facts['names'])} {facts['image_id'] or ''}".rstrip())
            return None
        for file in files:
            if host.run(Command(argv=("test", "-f", file)), timeout_sec=60.0).exit_code:
                raise UsageError(f"{file}: no such file on {host.name}", remedy="`inv image.archive` writes both files")
    return plan_result([f"load  {path} into the engine of {host.name}"], files=files)


def plan_archive(settings: Settings, action: str, path: str) -> VmWork:
    """Plan the job that loads the archive `path`, or saves an image, which the caller adds. Raises UsageError."""
    if not path.startswith("/"):
        raise UsageError(f"image.{action}: expected an absolute path on the VM, found {path!r}")
    client, command = engine_client(settings), f"inv image.{action} {shlex.quote(path)}"
    document = {"docker": [client.program], "environment": client.environment, "action": action, "path": path}
    return vm_work.plan_work(settings, command, "archive", f"{action}-{path}", document)


def _check_free_space(host: Host, size: int, path: str, data_root: str) -> None:
    """Check for enough disk space: `docker save` unpacks the whole image before it writes. Raises UsageError."""
    disks = engine.disk_info(host, (path, data_root))
    unpacked, remedy = "docker save unpacks the image there", "set DOCKER_TMPDIR for the engine to a larger disk"
    for folder, purpose, fix in (
        (disks.docker_tmpdir or data_root, unpacked, remedy),
        (path, "the archive", "choose a larger disk"),
    ):
        free = disks.folder(folder).free_bytes
        if free < size:
            problem = f"{folder}: {format_gb(free)} free, up to {format_gb(size)} needed: {purpose}"
            raise UsageError(problem, remedy=fix)
