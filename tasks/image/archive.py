"""`inv image.archive` and `image.load`: save and load the image as a file, for air-gapped sites."""

import shlex
from typing import Any

from invoke.context import Context

from bench.records.units import format_gb
from remote.hosts.command import Command
from remote.image import engine, vm_jobs
from remote.image.vm_jobs import Outcome
from remote.jobs.job import Agent, HostBusy
from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.build_vm import build_vm
from tasks.errors import RetryableError, UsageError, translate_errors
from tasks.image import build_profiles, jobs
from tasks.image.build import engine_client, image_record
from tasks.settings.load import Settings, load


def save_archive(context: Context, path: str, *, dry_run: bool = False) -> CommandResult | None:
    if dry_run:
        return _plan(context, "archive", path)
    outcome = _archive_job(context, "archive", path)
    facts = outcome.facts
    compressor = facts["compressor"]
    result = "already there" if compressor is None else f"by {compressor}, {outcome.wall_time_sec:.1f} s"
    size = format_gb(facts["size_bytes"], 3)
    print(f"{facts['path']} {size}, {result}; check it anywhere: sha256sum --check FILE.sha256")
    return None


def load_archive(context: Context, path: str, *, dry_run: bool = False) -> CommandResult | None:
    if dry_run:
        return _plan(context, "load", path)
    outcome = _archive_job(context, "load", path)
    print(f"{outcome.facts['path']} is loaded: {', '.join(outcome.facts['names'])} {outcome.facts['image_id']}")
    return None


def _plan(context: Context, action: str, path: str) -> CommandResult:
    """Return the plan of a job with an archive: the image and its size, or the archive and its checksum."""
    settings = load(context)
    _check_path(action, path)
    with build_vm(settings, _command(action, path)) as host:
        if action == "archive":
            with engine.connect(host, engine_client(settings)) as vm_engine:
                image = image_record(settings, host, vm_engine)
            size = format_gb(image["Size"], 2)
            line = f"archive  {build_profiles.image_name(settings)} ({size} unpacked) into {path} on {host.name}"
            return plan_result([line], image_id=image["Id"], unpacked_bytes=image["Size"], folder=path)
        files = [path, f"{path}.sha256"]
        missing = [file for file in files if host.run(Command(argv=("test", "-f", file)), timeout_sec=60.0).exit_code]
    if missing:
        raise UsageError(f"{missing[0]}: no such file on {host.name}", remedy="`inv image.archive` writes both files")
    return plan_result([f"load  {path} into the engine of {host.name}"], files=files)


def _command(action: str, path: str) -> str:
    return f"inv image.{action} {shlex.quote(path)}"


def _check_path(action: str, path: str) -> None:
    if not path.startswith("/"):
        raise UsageError(f"image.{action}: expected an absolute path on the VM, found {path!r}")


def _archive_job(context: Context, action: str, path: str) -> Outcome:
    settings = load(context)
    _check_path(action, path)
    client = engine_client(settings)
    request: dict[str, Any] = {
        "docker": [client.program],
        "environment": client.environment,
        "image": build_profiles.image_name(settings),
        "action": action,
        "path": path,
    }
    retry_command = _command(action, path)
    with build_vm(settings, retry_command) as host:
        agent = vm_jobs.create_agent(host)
        if action == "archive":
            with engine.connect(host, client) as vm_engine:
                request["image_id"] = image_record(settings, host, vm_engine)["Id"]
        job = jobs.matching_job(agent, "archive", request, retry_command)
        if job is None:
            if action == "archive":
                _check_free_space(settings, agent, path)
            job = vm_jobs.new_job(agent, "archive", f"{action}-{path}", request)
            with translate_errors(RetryableError, HostBusy, remedy=f"when that has ended, `{retry_command}`"):
                vm_jobs.start(job, request, deadline_sec=settings.image.deadline_sec)
        return jobs.follow(settings, job, retry_command)


def _check_free_space(settings: Settings, agent: Agent, path: str) -> None:
    """Check for enough disk space: `docker save` unpacks the whole image before it writes. Raises UsageError."""
    with engine.connect(agent.host, engine_client(settings)) as vm_engine:
        facts, image = vm_engine.observe(), image_record(settings, agent.host, vm_engine)
    disks = engine.disk_info(agent.host, (path, facts.data_root))
    unpack_folder = disks.docker_tmpdir or facts.data_root
    disks = engine.disk_info(agent.host, (path, unpack_folder))
    for folder, purpose, remedy in (
        (unpack_folder, "docker save unpacks the image there", "set DOCKER_TMPDIR for the engine to a larger disk"),
        (path, "the archive", "choose a larger disk"),
    ):
        free, size = disks.folder(folder).free_bytes, image["Size"]
        if free < size:
            problem = f"{folder}: {format_gb(free)} free, up to {format_gb(size)} needed: {purpose}"
            raise UsageError(problem, remedy=remedy)
