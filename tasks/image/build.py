"""`inv build`: build the offline image on the build VM, with large files below `--tmpdir`.

Steps: inspect the engine, its disks, the models and an existing image; plan (`remote.image.plan`, printed by
--dry-run); run the build as a detached job; inspect the engine again. A second `inv build` follows the first one's
job: only one build runs on a VM.
"""

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records.units import format_gb, format_mb
from remote.hosts.base import Host
from remote.hosts.command import Secret
from remote.hosts.local import run_git
from remote.image import engine, vm_jobs
from remote.image import plan as buildplan
from remote.image.context import CodeFile, ContextError, code_files
from remote.image.engine import Client, Engine, EngineUsage
from remote.image.plan import BuildPlan, ImageSpec, InsufficientSpace
from remote.jobs import transfer
from remote.jobs.job import Agent, HostBusy, Job
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.clients.build_vm import build_vm, resolve_tmpdir
from tasks.clients.registry import configured_image, parse_reference
from tasks.clients.secrets import checked_index_url, encoded_login, registry_password
from tasks.errors import RetryableError, UsageError, escape_controls, translate_errors
from tasks.image import build_profiles, jobs
from tasks.settings.load import Settings, load

_SHOWN_WORDS = 7  # up to the target of the build


def build_image(
    context: Context, tmpdir: str | None, *, dry_run: bool, cancel: bool, force: bool
) -> CommandResult | None:
    refuse_several("build", {"--cancel": cancel, "--dry-run": dry_run, "--force": force and cancel})
    settings = load(context)
    resume_command = format_command("build", tmpdir=tmpdir)
    started_at = time.monotonic()
    with build_vm(
        settings, format_command("build", tmpdir=tmpdir, cancel=cancel, dry_run=dry_run, force=force)
    ) as host:
        agent = vm_jobs.create_agent(host)
        if cancel:
            jobs.cancel(agent, "build")
            return None
        tmp_folder = resolve_tmpdir(settings, host, tmpdir)
        if dry_run:
            plan, _ = plan_build(settings, host, tmp_folder, force=force)
            lines = [f"{host.name}: the image is up to date"] if plan is None else render(plan).splitlines()
            return plan_result(lines, host=host.name, build=None if plan is None else _document(plan))
        _build_until_current(settings, agent, tmp_folder, resume_command, started_at, force=force)
    return None


def _build_until_current(
    settings: Settings, agent: Agent, tmp_folder: str, resume_command: str, started_at: float, *, force: bool
) -> None:
    """Follow a running build or start one, until the image is up to date.

    `resume_command` has no --force: it follows a running build and does not repeat one that has ended.
    """
    result = "is up to date: nothing was sent, nothing was built"
    for _ in range(3):  # a build of older sources, or another user's, may run first
        retry_command = f"{resume_command} --force" if force else resume_command
        job = vm_jobs.running_job(agent)
        if job is None:
            plan, image = plan_build(settings, agent.host, tmp_folder, force=force)
            if plan is None:
                break
            request = plan.to_job(force=force)
            job = vm_jobs.new_job(agent, "build", build_profiles.image_name(settings), request)
            print(render(plan), flush=True)
            _upload_code(settings, agent, plan, tmp_folder)
            registry, login = _cache_login(settings, retry_command)
            document = {**request, "registry": registry}
            try:
                vm_jobs.start(job, document, secret=login, deadline_sec=settings.image.deadline_sec)
            except HostBusy:
                continue
            force = False
            jobs.follow(settings, job, resume_command)
        elif vm_jobs.verb_of(job) != "build":
            raise jobs.busy_error(job, retry_command)
        else:
            print(f"{agent.host.name}: a build is already running ({job.folder}); following it", flush=True)
            try:
                jobs.follow(settings, job, retry_command)
            except vm_jobs.JobFailed as failure:
                if _is_same_build(settings, job, tmp_folder, force=force):
                    raise
                print(f"that build, of different sources, failed: {failure}", flush=True)
                continue
            force = force and not _is_same_build(settings, job, tmp_folder, force=force)
        result = f"is built; log: {jobs.log_path(settings, job)}"
    else:
        plan, image = plan_build(settings, agent.host, tmp_folder, force=force)
        if plan is not None:
            raise RetryableError(f"{agent.host.name}: three other builds ran first", remedy=f"`{resume_command}`")
    size, elapsed_sec = format_gb(image["Size"], 2), time.monotonic() - started_at
    print(f"{build_profiles.image_name(settings)} {image['Id'][7:19]} {result}; {size}, {elapsed_sec:.1f} s")


def _is_same_build(settings: Settings, job: Job, tmp_folder: str, *, force: bool) -> bool:
    plan, _ = plan_build(settings, job.agent.host, tmp_folder, force=force)
    return plan is not None and vm_jobs.matches_request(job, "build", plan.to_job(force=force))


def plan_build(
    settings: Settings, host: Host, tmp_folder: str, *, force: bool = False
) -> tuple[BuildPlan | None, Mapping[str, Any]]:
    """Plan the build; None if the image is up to date and `force` is not set. Returns the image's record, too."""
    with translate_errors(UsageError, ContextError):
        vm_jobs.claim(host, tmp_folder, create=False)  # refuse another user's folder before reading it
        spec = image_spec(settings, tmp_folder)
        with engine.connect(host, spec.client) as vm_engine:
            facts = vm_engine.observe()
            disks = engine.disk_info(host, (tmp_folder, facts.data_root), spec.model_folders())
            image = vm_engine.inspect(spec.image) or {}
            labels = image_labels(image)
            buildplan.check_tmpdir(disks.folder(tmp_folder))
            if not force and buildplan.is_built(spec, disks, labels):
                return None, image
            try:
                return buildplan.plan(spec, facts, disks, labels), image
            except InsufficientSpace as error:
                if not error.is_engine_disk:
                    raise
                frees = format_gb(engine_usage(settings, vm_engine).prunable_bytes)
                raise InsufficientSpace(f"{error.problem}; a prune frees {frees}", remedy=error.remedy) from error


def image_spec(settings: Settings, tmp_folder: str) -> ImageSpec:
    """Build the image's specification from the settings and the project folder. Raises ContextError, UsageError."""
    return ImageSpec(
        image=build_profiles.image_name(settings),
        section=settings.image,
        profile=build_profiles.selected_profile(settings),
        tmpdir=tmp_folder,
        code=_context_files(settings),
        index_url=checked_index_url(settings),
        git_sha=_git_sha(settings.root),
    )


def _context_files(settings: Settings) -> tuple[CodeFile, ...]:
    """List our files of the build context. Raises ContextError."""
    wheels, extension = (
        None if name is None else settings.resolve_path(name)
        for name in (settings.image.wheels, settings.image.extension)
    )
    return code_files(settings.root, settings.image.profile, wheels, extension)


def engine_client(settings: Settings) -> Client:
    return Client(program=settings.image.client, address=settings.image.engine)


def engine_usage(settings: Settings, vm_engine: Engine) -> EngineUsage:
    """Return what the engine uses; the images of earlier builds have no name, or only that of an earlier push."""
    image = settings.registry.image
    repository = None if image is None else parse_reference("registry.image", image, settings.image.profile).repository
    return vm_engine.usage(buildplan.BUILD_LABEL, repository)


def image_record(settings: Settings, host: Host, vm_engine: Engine) -> Mapping[str, Any]:
    """Return the engine's record of the image. Raises UsageError if it is not on the VM, and HostError."""
    name = build_profiles.image_name(settings)
    image = vm_engine.inspect(name)
    if image is None:
        raise UsageError(f"{host.name}: no image {name}", remedy="`inv build` builds it")
    return image


def image_labels(image: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels in the engine's record of an image."""
    return dict(image.get("Config", {}).get("Labels") or {})


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


def render(plan: BuildPlan) -> str:
    """Format the plan as lines of text."""
    disks = {need.folder.device: need.folder for need in plan.needs}.values()
    lines = [
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
    return "\n".join(lines)


def _upload_code(settings: Settings, agent: Agent, plan: BuildPlan, tmp_folder: str) -> None:
    """Upload our files to the VM, verified, below a folder named by their digest."""
    vm_jobs.claim(agent.host, tmp_folder)
    files = {file.path: file.source for file in _context_files(settings)}
    sent = transfer.push(agent, files, plan.code_folder)
    count, present = formatting.count(len(sent.transferred), "file"), len(sent.already_present)
    print(f"sent {count}, {format_mb(sent.byte_count, 2)}; {present:,} already there", flush=True)


def _cache_login(settings: Settings, retry_command: str) -> tuple[dict[str, Any] | None, Secret | None]:
    """Return the registry of image.cache_from or cache_to and its login, if it is the configured one.

    Other registries use the client's own login on the VM. Raises a task's errors.
    """
    image = settings.image
    names = [*image.cache_from, *([image.cache_to] if image.cache_to not in (None, buildplan.INLINE_CACHE) else [])]
    if settings.registry.image is None or settings.registry.user is None or not names:
        return None, None
    reference, user = configured_image(settings)
    if not any(name.startswith(f"{reference.host}/") for name in names):
        return None, None
    registry = {"host": reference.host, "path": reference.path, "token_hosts": list(settings.registry.token_hosts)}
    return registry, encoded_login(user, registry_password(settings, user, reference.host, retry_command))


def _git_sha(root: Path) -> str:
    """Return the commit, with `-dirty` if the image's files have uncommitted changes; empty outside of git."""
    sha = run_git(root, "rev-parse", "HEAD")
    return f"{sha}-dirty" if sha and run_git(root, "status", "--porcelain", "--", "bench", "image") else sha or ""
