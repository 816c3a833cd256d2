"""`inv build`: build the offline image on the build VM, with large files below `--tmpdir`.

Steps: settings and flags become an image's specification; engine, disks, models and an existing image are inspected;
both give the plan (`remote.image.plan`), which --dry-run prints and a detached job carries out. A second `inv build`
of the same image follows the first one's job, another one is refused: only one job runs on a VM.
"""

import shlex
import time
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records.units import format_gb, format_mb
from remote.hosts.host_protocol import Host
from remote.hosts.local import run_git
from remote.image import engine, vm_jobs
from remote.image import plan as buildplan
from remote.image.context import code_files
from remote.image.engine import EngineImage
from remote.image.plan import BuildPlan, ImageSpec
from remote.jobs import transfer
from remote.jobs.job import Agent
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.clients.build_vm import build_vm, resolve_tmpdir
from tasks.clients.registry import parse_reference
from tasks.clients.secrets import checked_index_url
from tasks.errors import escape_controls
from tasks.image import build_profiles, vm_work
from tasks.settings.layers import Settings, load

_SHOWN_WORDS = 7  # up to the target of the build


def build_image(
    context: Context, tmpdir: str | None, *, dry_run: bool, cancel: bool, force: bool
) -> CommandResult | None:
    refuse_several("build", {"--cancel": cancel, "--dry-run": dry_run, "--force": force and cancel})
    settings, started_at = load(context), time.monotonic()
    command = format_command("build", tmpdir=tmpdir, cancel=cancel, dry_run=dry_run, force=force)
    with build_vm(settings, command) as host:
        if cancel:
            vm_work.cancel(host, "build")
            return None
        spec = image_spec(settings, resolve_tmpdir(settings, host, tmpdir))
        plan = plan_build(spec, host, force=force)
        if isinstance(plan, EngineImage):
            if dry_run:
                return plan_result([f"{host.name}: the image is up to date"], host=host.name, build=None)
            image, result = plan, "is up to date: nothing was sent, nothing was built"
        else:
            if dry_run:
                check_space(settings, host, plan)
                return plan_result(render(plan), host=host.name, build=_document(plan))
            image, log = _build(settings, spec, host, plan, command)
            result = f"is built; log: {log}"
    size, elapsed_sec = format_gb(image.size, 2), time.monotonic() - started_at
    print(f"{spec.image} {image.short_id} {result}; {size}, {elapsed_sec:.1f} s")
    return None


def plan_build(spec: ImageSpec, host: Host, *, force: bool = False) -> BuildPlan | EngineImage:
    """Plan the build, or return the image if it is up to date and not `force`. Raises the errors of `build_vm`."""
    vm_jobs.claim(host, spec.workdir, create=False)  # refuse another user's folder before reading it
    with engine.connect(host, spec.section.client) as vm_engine:
        image = vm_engine.find_image(spec.image)
        labels = {} if image is None else image.labels
        disks = engine.disk_info(host, (spec.tmpdir,), spec.model_folders())
        buildplan.check_tmpdir(disks.folder(spec.tmpdir))
        if image is not None and not force and buildplan.is_built(spec, disks, labels):
            return image
        facts = vm_engine.observe()
    root = engine.disk_info(host, (facts.data_root,)).folder(facts.data_root)
    return buildplan.plan(spec, facts, root, disks, labels)


def check_space(settings: Settings, host: Host, plan: BuildPlan) -> None:
    """Check that the build fits. Raises InsufficientSpace, with the bytes that a prune frees."""

    def read_prunable() -> int:
        with engine.connect(host, settings.image.client) as vm_engine:
            return vm_engine.usage(buildplan.BUILD_LABEL, registry_repository(settings)).prunable_bytes

    buildplan.check_free_space(plan, read_prunable)


def _build(settings: Settings, spec: ImageSpec, host: Host, plan: BuildPlan, command: str) -> tuple[EngineImage, Path]:
    """Build the image, or follow the build that runs. Returns the image and the log's path."""

    def prepare(agent: Agent) -> None:
        check_space(settings, host, plan)
        print("\n".join(render(plan)), flush=True)
        _upload_code(agent, spec, plan)

    work = vm_work.plan_work(settings, command, "build", plan.image, plan.to_job())
    outcome = vm_work.run(host, work, prepare)
    facts = outcome.facts
    image = EngineImage(image_id=facts["image_id"], size=facts["size_bytes"], labels={})
    return image, work.log_path(outcome.job)


def image_spec(settings: Settings, tmp_folder: str) -> ImageSpec:
    """Build the image's specification from the settings and the project folder. Raises ContextError, UsageError."""
    section = settings.image
    wheels = None if section.wheels is None else settings.resolve_path(section.wheels)
    return ImageSpec(
        image=build_profiles.image_name(settings),
        section=section,
        profile=build_profiles.selected_profile(settings),
        tmpdir=tmp_folder,
        code=code_files(settings.root, section.profile, wheels),
        index_url=checked_index_url(settings),
        git_sha=_git_sha(settings.root),
    )


def registry_repository(settings: Settings) -> str | None:
    """Return HOST/PATH of registry.image; None if it is not set. Raises UsageError."""
    image = settings.registry.image
    return None if image is None else parse_reference("registry.image", image, settings.image.profile).repository


def _document(plan: BuildPlan) -> dict[str, Any]:
    """Return the plan as JSON for programs."""
    needs = [{"folder": need.folder.path, "bytes": need.need_bytes, "purpose": need.purpose} for need in plan.needs]
    return {
        "image": plan.image,
        "digest": plan.digest,
        "command": list(plan.argv),
        "code_files": len(plan.code),
        "needs": needs,
        "notes": list(plan.notes),
    }


def render(plan: BuildPlan) -> list[str]:
    """Format the plan as lines of text."""
    disks = {need.folder.device: need.folder for need in plan.needs}.values()
    return [
        f"image {plan.image}, build {plan.digest[:12]}",
        *(f"  {note}" for note in plan.notes),
        *(f"  {need.folder.path}: {format_gb(need.need_bytes, 2)} for {need.purpose}" for need in plan.needs),
        *(f"  {disk.path}: {format_gb(disk.free_bytes)} free on {disk.kind}" for disk in disks),
        *(
            f"  slot {file.slot:02d} <- {escape_controls(file.source)} ({format_gb(file.size, 2)})"
            for file in plan.packed
        ),
        f"  {len(plan.code)} files of ours -> {plan.code_folder}",
        f"  {shlex.join(plan.argv[:_SHOWN_WORDS])} ... ({len(plan.argv) - _SHOWN_WORDS} more words: --json)",
    ]


def _upload_code(agent: Agent, spec: ImageSpec, plan: BuildPlan) -> None:
    """Upload our files to the VM, verified, below a folder named by their digest."""
    vm_jobs.claim(agent.host, spec.workdir)
    files = {file.path: file.source for file in spec.code}
    sent = transfer.push(agent, files, plan.code_folder)
    count, present = formatting.count(len(sent.transferred), "file"), len(sent.already_present)
    print(f"sent {count}, {format_mb(sent.byte_count, 2)}; {present:,} already there", flush=True)


def _git_sha(root: Path) -> str:
    """Return the commit, with `-dirty` if the image's files have uncommitted changes; empty outside of git."""
    sha = run_git(root, "rev-parse", "HEAD")
    return f"{sha}-dirty" if sha and run_git(root, "status", "--porcelain", "--", "bench", "image") else sha or ""
