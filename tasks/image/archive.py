"""`inv image.archive`: save the image as a file, for air-gapped sites."""

import shlex

from invoke.context import Context

from bench.records.units import format_gb
from remote.hosts.host_protocol import Host
from remote.image import engine
from remote.jobs.job import Agent
from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.build_vm import build_vm
from tasks.errors import UsageError
from tasks.image import build_profiles, vm_work
from tasks.image.build import engine_client
from tasks.settings.layers import load


def save_archive(context: Context, path: str, *, dry_run: bool = False) -> CommandResult | None:
    if not path.startswith("/"):
        raise UsageError(f"image.archive: expected an absolute path on the VM, found {path!r}")
    settings, command = load(context), f"inv image.archive {shlex.quote(path)}"
    name, client = build_profiles.image_name(settings), engine_client(settings)
    with build_vm(settings, command) as host:
        with engine.connect(host, client) as vm_engine:
            image, data_root = vm_engine.image(name), vm_engine.observe().data_root
        if dry_run:
            size = format_gb(image.size, 2)
            line = f"archive  {name} ({size} unpacked) into {path} on {host.name}"
            return plan_result([line], image_id=image.image_id, unpacked_bytes=image.size, folder=path)

        def prepare(_: Agent) -> None:
            _check_free_space(host, image.size, path, data_root)

        request = {**client.to_job(), "path": path, "image": name, "image_id": image.image_id}
        outcome = vm_work.run(host, vm_work.plan_work(settings, command, "archive", path, request), prepare)
    facts = outcome.facts
    compressor = facts["compressor"]
    result = "already there" if compressor is None else f"by {compressor}, {outcome.wall_time_sec:.1f} s"
    size = format_gb(facts["size_bytes"], 3)
    print(f"{facts['path']} {size}, {result}; check it anywhere: sha256sum --check FILE.sha256")
    return None


def _check_free_space(host: Host, size: int, path: str, data_root: str) -> None:
    """Check for enough disk space: `docker save` unpacks the whole image before it writes. Raises UsageError."""
    disks = engine.disk_info(host, (path, data_root))
    for folder, purpose, fix in (
        (data_root, "docker save unpacks the image there", "free some, or move the engine's data to a larger disk"),
        (path, "the archive", "choose a larger disk"),
    ):
        free = disks.folder(folder).free_bytes
        if free < size:
            problem = f"{folder}: {format_gb(free)} free, up to {format_gb(size)} needed: {purpose}"
            raise UsageError(problem, remedy=fix)
