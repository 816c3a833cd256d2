"""`inv build`: the offline image, built on the build VM, with its large files below `--tmpdir`.

Observe (the engine, its disks, the models there, the image that may exist), plan (`remote.image.plan`, which --dry-run
prints), act (a detached job), observe again (what the engine has now). A second `inv build` finds the first one's job
and follows it: exactly one build runs on a VM.
"""

import shlex
import time
from pathlib import Path

from invoke.context import Context

from remote.hosts.host import Host
from remote.image import engine, registry, vm_jobs, workdir
from remote.image import plan as buildplan
from remote.image.context import CodeFile, ContextError, code_files
from remote.image.engine import Client, inspect
from remote.image.plan import BuildPlan, ImageSpec
from remote.image.vm_jobs import Outcome
from remote.jobs import transfer
from remote.jobs.agent import Agent
from remote.jobs.job import HostBusy, Job
from tasks.cli.git import git
from tasks.clients.build_vm import build_vm_job, tmpdir_on
from tasks.clients.registry import address
from tasks.clients.secrets import index_of, registry_password
from tasks.errors import RetryableError, TaskFailed, UsageError, translate_errors
from tasks.image import build_profiles, jobs
from tasks.settings.load import Settings, load


def build_image(context: Context, tmpdir: str | None, *, dry_run: bool, cancel: bool, anew: bool) -> None:
    settings = load(context)
    again = f"inv build --tmpdir {tmpdir}" if tmpdir is not None else "inv build"
    began = time.monotonic()
    with build_vm_job(settings, again, ", --cancel stops it") as host:
        agent = vm_jobs.agent_on(host)
        if cancel:
            jobs.cancel(agent, "build")
            return
        tmp = tmpdir_on(settings, host, tmpdir)
        if dry_run:
            plan = due(settings, host, tmp, anew=anew)
            print(f"{host.name}: the image is up to date" if plan is None else render(plan))
            return
        _work(settings, agent, tmp, again, began, anew=anew)


def _work(settings: Settings, agent: Agent, tmp: str, again: str, began: float, *, anew: bool) -> None:
    """Follow the build that runs, or start one, until the image is the wanted one."""
    how = "is up to date: nothing was sent, nothing was built"
    for _ in range(3):  # another build may run first: one of older sources, or somebody else's
        job = vm_jobs.running(agent)
        if job is None:
            plan = due(settings, agent.host, tmp, anew=anew)
            if plan is None:
                _conclude(settings, agent.host, how, began)
                return
            request = plan.to_job(anew=anew)
            job = vm_jobs.new(agent, "build", build_profiles.image_name(settings), request)
            print(render(plan), flush=True)
            _send(settings, agent, plan, tmp)
            login = _login(settings, agent, again)
            try:
                vm_jobs.start(job, {**request, "login": login}, deadline_sec=settings.image.deadline_sec)
            except HostBusy:
                if login is not None:
                    registry.forget(agent.host, login)
                continue
            anew = False
            outcome = jobs.follow(settings, job)
        elif vm_jobs.verb_of(job) != "build":
            raise jobs.busy(job, again)
        else:
            print(f"{agent.host.name}: a build is running already ({job.folder}); following it", flush=True)
            followed = _follow_running(settings, job, tmp, anew=anew)
            if followed is None:
                continue
            outcome = followed
        how = f"is built; log: {jobs.log_of(settings, job)}"
        _suggest_pin(settings, outcome)
    if due(settings, agent.host, tmp, anew=anew) is not None:
        raise RetryableError(f"{agent.host.name}: three other builds ran first; `{again}`")
    _conclude(settings, agent.host, how, began)


def _follow_running(settings: Settings, job: Job, tmp: str, *, anew: bool) -> Outcome | None:
    """Wait for a build that is there already; None where it failed and was not the same work as ours."""
    try:
        return jobs.follow(settings, job)
    except vm_jobs.JobFailed as failure:
        plan = due(settings, job.agent.host, tmp, anew=anew)
        if plan is not None and vm_jobs.does(job, "build", plan.to_job(anew=anew)):
            raise
        print(f"that build, which was of other sources, failed: {failure}", flush=True)
        return None


def due(settings: Settings, host: Host, tmp: str, *, anew: bool = False) -> BuildPlan | None:
    """The build that is due, or None where the image is already the wanted one and need not be made `anew`."""
    with translate_errors(UsageError, ContextError):
        workdir.claim(host, tmp, make=False)  # what another user made there is not even read
        want = wanted(settings, tmp)
        facts = engine.observe(host, want.client)
        look = engine.disk_info(host, (tmp, facts.data_root), want.model_folders())
        existing = inspect(host, want.client, want.image) or {}
        labels = dict(existing.get("Config", {}).get("Labels") or {})
        if not anew and buildplan.is_built(want, look, labels):
            return None
        return buildplan.plan(want, facts, look, labels)


def wanted(settings: Settings, tmp: str) -> ImageSpec:
    """The image that settings and project folder ask for. Raises ContextError, UsageError."""
    image = settings.image
    return ImageSpec(
        profile=build_profiles.read(settings),
        image=build_profiles.image_name(settings),
        target=image.target,
        tmpdir=tmp,
        code=_code(settings),
        models=image.models,
        extra_packages=image.extra_packages,
        index_url=index_of(settings),
        pip_conf=image.pip_conf,
        network=image.network,
        torch=image.torch,
        nvcc=image.nvcc and image.target == "dev",
        apt_snapshot=image.apt_snapshot,
        cache_from=image.cache_from,
        cache_to=image.cache_to,
        git_sha=_git_sha(settings.root),
        client=client(settings),
    )


def _code(settings: Settings) -> tuple[CodeFile, ...]:
    """Our files in the build's context. Raises ContextError."""
    wheels, extension = (
        None if name is None else settings.file(name) for name in (settings.image.wheels, settings.image.extension)
    )
    return code_files(settings.root, settings.image.profile, wheels, extension)


def client(settings: Settings) -> Client:
    return Client(program=settings.image.client, address=settings.image.engine)


def render(plan: BuildPlan) -> str:
    """The plan as lines for people."""
    disks = {need.place.device: need.place for need in plan.needs}.values()
    lines = [
        f"image {plan.image}, build {plan.digest[:12]}",
        *(f"  {note}" for note in plan.notes),
        *(f"  {need.place.path}: {need.need_bytes / 1e9:.2f} GB for {need.what}" for need in plan.needs),
        *(f"  {disk.path}: {disk.free_bytes / 1e9:.1f} GB free on {disk.kind}" for disk in disks),
        *(f"  slot {file.slot:02d} <- {file.source} ({file.size / 1e9:.2f} GB)" for file in plan.packed),
        f"  {len(plan.code)} files of ours -> {plan.code_folder}",
        f"  {shlex.join(plan.argv)}",
    ]
    return "\n".join(lines)


def _send(settings: Settings, agent: Agent, plan: BuildPlan, tmp: str) -> None:
    """Send our files to the VM, verified, below a folder named by their digest."""
    workdir.claim(agent.host, tmp)
    files = {file.place: file.source for file in _code(settings)}
    moved = transfer.push(agent, files, plan.code_folder)
    print(f"sent {len(moved.came)} files, {moved.byte_count / 1e6:.2f} MB; {len(moved.already)} were there", flush=True)


def _login(settings: Settings, agent: Agent, again: str) -> str | None:
    """The folder of a login on the VM, where layers are taken from or brought to the registry of the settings.

    Other registries are asked with the client's own login there. The job removes the folder. Raises a task's errors.
    """
    image = settings.image
    names = [*image.cache_from, *([image.cache_to] if image.cache_to not in (None, buildplan.INLINE) else [])]
    if settings.registry.image is None or settings.registry.user is None or not names:
        return None
    where, user = address(settings)
    if not any(name.startswith(f"{where.host}/") for name in names):
        return None
    secret = registry_password(settings, user, where.host, again)
    return registry.log_in(agent.host, client(settings), where.host, user, secret)


def _suggest_pin(settings: Settings, outcome: Outcome) -> None:
    """Print how to pin the base image; its digest is known once it has been pulled."""
    digests = outcome.facts.get("base_digests") or []
    base = settings.image.base or ""
    if digests and "@" not in base:
        print(f"base image: {digests[0]}; to build on this one from now on, set image.base to it")


def _conclude(settings: Settings, host: Host, how: str, began: float) -> None:
    name = build_profiles.image_name(settings)
    facts = inspect(host, client(settings), name)
    if facts is None:
        raise TaskFailed(f"{host.name}: {name} was there and is gone; somebody removed it; `inv build`")
    print(f"{name} {facts['Id'][7:19]} {how}; {facts['Size'] / 1e9:.2f} GB, {time.monotonic() - began:.1f} s")


def _git_sha(root: Path) -> str:
    """The image's commit, marked where the files in it were changed since; empty outside of git."""
    sha = git(root, "rev-parse", "HEAD")
    return f"{sha}-dirty" if sha and git(root, "status", "--porcelain", "--", "bench", "image") else sha or ""
