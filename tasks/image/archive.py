"""`inv image.archive` and `image.load`: the image as a file, for the other side of an air gap."""

from collections.abc import Mapping
from typing import Any

from invoke.context import Context

from remote.image import engine, vm_jobs
from remote.image.vm_jobs import Outcome
from remote.jobs.agent import Agent
from remote.jobs.job import HostBusy
from tasks.clients.build_vm import build_vm_job
from tasks.errors import RetryableError, UsageError, translate_errors
from tasks.image import build_profiles, jobs
from tasks.image.build import client
from tasks.settings.load import Settings, load


def save_archive(context: Context, path: str) -> None:
    outcome = _archive_job(context, "archive", path, f"inv image.archive {path}")
    facts = outcome.facts
    how = "was there" if facts["compressor"] is None else f"by {facts['compressor']}, {outcome.wall_time_sec:.1f} s"
    print(
        f"{facts['path']} {facts['size_bytes'] / 1e9:.3f} GB, {how}; check it anywhere: sha256sum --check FILE.sha256"
    )


def load_archive(context: Context, path: str) -> None:
    outcome = _archive_job(context, "load", path, f"inv image.load {path}")
    print(f"{outcome.facts['path']} is loaded: {outcome.facts['image_id']}")


def _archive_job(context: Context, action: str, path: str, again: str) -> Outcome:
    settings = load(context)
    if not path.startswith("/"):
        raise UsageError(f"image.{action}: expected an absolute path on the VM, found {path!r}")
    how = client(settings)
    document: dict[str, Any] = {
        "docker": [how.program],
        "environment": how.environment,
        "image": build_profiles.image_name(settings),
        "action": action,
        "path": path,
    }
    with build_vm_job(settings, again) as host:
        agent = vm_jobs.agent_on(host)
        if action == "archive":
            document["image_id"] = _image(settings, agent)["Id"]
        job = vm_jobs.running(agent)
        if job is not None and not vm_jobs.does(job, "archive", document):
            raise jobs.busy(job, again)
        if job is None:
            if action == "archive":
                _check_room(settings, agent, path)
            job = vm_jobs.new(agent, "archive", f"{action}-{path}", document)
            with translate_errors(RetryableError, HostBusy, after=f"; when that has ended, `{again}`"):
                vm_jobs.start(job, document, deadline_sec=settings.image.deadline_sec)
        return jobs.follow(settings, job)


def _image(settings: Settings, agent: Agent) -> Mapping[str, Any]:
    """The engine's record of the image. Raises UsageError where there is none."""
    image = engine.inspect(agent.host, client(settings), build_profiles.image_name(settings))
    if image is None:
        raise UsageError(f"{build_profiles.image_name(settings)}: not on the VM; `inv build` makes it")
    return image


def _check_room(settings: Settings, agent: Agent, path: str) -> None:
    """Raises UsageError where the disks are too small: `docker save` unpacks the whole image before it writes."""
    facts = engine.observe(agent.host, client(settings))
    image = _image(settings, agent)
    seen = engine.disk_info(agent.host, (path, facts.data_root))
    unpack = seen.docker_tmpdir or facts.data_root
    seen = engine.disk_info(agent.host, (path, unpack))
    for place, what in ((seen.place(unpack), "docker save unpacks the image there"), (seen.place(path), "the archive")):
        if place.free_bytes < image["Size"]:
            raise UsageError(
                f"{place.path}: {place.free_bytes / 1e9:.1f} GB free, and {image['Size'] / 1e9:.1f} GB may be "
                f"needed: {what}; "
                + ("set DOCKER_TMPDIR for the engine to a larger disk" if place.path == unpack else "name a larger one")
            )
