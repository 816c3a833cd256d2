"""`inv image.archive`: save the image as a file, for air-gapped sites."""

import shlex

from invoke.context import Context

from bench.records.units import format_gb
from remote.image import engine
from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.build_vm import build_vm
from tasks.errors import UsageError
from tasks.image import build_profiles, vm_work
from tasks.settings.layers import load


def save_archive(context: Context, path: str, *, dry_run: bool = False) -> CommandResult | None:
    if not path.startswith("/"):
        raise UsageError(f"image.archive: expected an absolute path on the VM, found {path!r}")
    settings, command = load(context), f"inv image.archive {shlex.quote(path)}"
    name, client = build_profiles.image_name(settings), settings.image.client
    with build_vm(settings, command) as host:
        with engine.connect(host, client) as vm_engine:
            image = vm_engine.image(name)
        if dry_run:
            size = format_gb(image.size, 2)
            line = f"archive  {name} ({size} unpacked) into {path} on {host.name}"
            return plan_result([line], image_id=image.image_id, unpacked_bytes=image.size, folder=path)
        request = {"docker": [client], "path": path, "image": name, "image_id": image.image_id}
        outcome = vm_work.run(host, vm_work.plan_work(settings, command, "archive", path, request), lambda _: None)
    facts = outcome.facts
    size, result = format_gb(facts["size_bytes"], 3), f"by {facts['compressor']}, {outcome.wall_time_sec:.1f} s"
    print(f"{facts['path']} {size}, {result}; check it anywhere: sha256sum --check FILE.sha256")
    return None
