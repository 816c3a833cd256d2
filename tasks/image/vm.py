"""`inv vm.prune`: free the disk of the build VM's engine."""

import dataclasses

from invoke.context import Context

from bench.records.units import format_gb
from remote.image import engine, vm_jobs
from remote.image.plan import BUILD_LABEL
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command
from tasks.cli.terminal import confirm
from tasks.clients.build_vm import build_vm
from tasks.errors import ConfirmationRequired, escape_controls
from tasks.image import vm_work
from tasks.image.build import registry_repository
from tasks.settings.layers import load


def prune_vm(context: Context, *, dry_run: bool, yes: bool) -> CommandResult | None:
    """Remove the engine's unused build cache, and images of earlier builds that have no name of their own."""
    settings, command = load(context), format_command("vm.prune", yes=yes)
    with build_vm(settings, command) as host, engine.connect(host, settings.image.client) as vm_engine:
        usage = vm_engine.usage(BUILD_LABEL, registry_repository(settings))
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
