"""`inv push`: the image into the registry, and the registry's digest of it into results/image.json.

The push is a job on the build VM, as the build is. This machine has the password, keeps it in memory, and logs in once
more if the registry stops accepting it halfway.
"""

import contextlib
import datetime

from invoke.context import Context

from bench.records.durable import write_atomic
from remote.hosts.host import HostError
from remote.image import registry, vmjob
from remote.image.names import USER_FORMS, NameWrong, Reference, reference
from remote.image.registry import outcome_json
from remote.image.vmjob import Outcome
from remote.jobs.agent import Agent
from remote.jobs.job import HostBusy, Job
from tasks.connect.buildvm import build_vm_job, show_cut, show_line
from tasks.connect.secrets import check_registry_user, registry_password
from tasks.errors import Resumable, UsageError, cannot_write
from tasks.image import profiles
from tasks.image.build import client, keep_log
from tasks.settings.load import Settings, load

AGAIN = "inv push"
LOGINS = 2  # a token may expire between the first layer and the last


def push_image(context: Context, *, dry_run: bool) -> None:
    settings = load(context)
    where, user = _where(settings)
    image = profiles.image_name(settings)
    if dry_run:
        print(f"{image} -> {where} as {user}; nothing was touched")
        return
    with build_vm_job(settings, AGAIN) as host:
        outcome = _work(settings, vmjob.agent_on(host), where, user, image)
    facts = outcome.facts
    _write(settings, where, facts)
    how = f"pushed in {outcome.wall_time_sec:.1f} s" if facts["sent"] else "was there already; nothing was sent"
    print(f"{where.repository}@{facts['digest']} {how}; {facts['compressed_bytes'] / 1e6:.2f} MB in the registry")


def _where(settings: Settings) -> tuple[Reference, str]:
    section = settings.registry
    if section.image is None:
        raise UsageError(
            "registry.image: not set; REGION-KEY.ocir.io/NAMESPACE/REPOSITORY:TAG, in invoke.yaml or ~/.invoke.yaml"
        )
    if section.user is None:
        raise UsageError(f"registry.user: not set; for OCIR {USER_FORMS}")
    try:
        where = reference(section.image, settings.image.profile)
    except NameWrong as error:
        raise UsageError(f"registry.image: {error}") from None
    check_registry_user(section.user, where.repository)
    return where, section.user


def _work(settings: Settings, agent: Agent, where: Reference, user: str, image: str) -> Outcome:
    """Follow the push that runs, or log in and start one."""
    job = vmjob.running(agent)
    if job is not None:
        if vmjob.verb_of(job) != "push" or not job.folder.rpartition("/")[2].startswith(_name(where)):
            raise Resumable(f"{agent.host.name}: busy with {job.folder}; when that has ended, `{AGAIN}`")
        print(f"{agent.host.name}: a push is running already ({job.folder}); following it", flush=True)
        return _follow(settings, job)
    secret = registry_password(settings, user, where.host, AGAIN)
    how = client(settings)
    for login in range(1, LOGINS + 1):
        folder = registry.log_in(agent.host, how, where, user, secret, tidy=True)
        job = vmjob.new(agent, "push", _name(where).removeprefix("push-"))
        document = {
            "docker": [how.program],
            "environment": how.environment,
            "login": folder,
            "image": image,
            "host": where.host,
            "path": where.path,
            "tag": where.tag,
        }
        try:
            vmjob.start(job, document, deadline_sec=settings.image.deadline_sec)
        except HostBusy as busy:
            registry.forget(agent.host, folder)
            raise Resumable(f"{busy}; when that has ended, `{AGAIN}`") from None
        try:
            return _follow(settings, job)
        except vmjob.JobFailed as failure:
            with contextlib.suppress(HostError):  # the job does so itself, unless it was killed
                registry.forget(agent.host, folder)
            if failure.kind != "unauthorized" or login == LOGINS:
                raise
            print(f"{where.host}: no longer logged in ({failure}); logging in once more", flush=True)
    raise AssertionError("unreachable")


def _name(where: Reference) -> str:
    safe = "".join(c if c.isalnum() else "-" for c in f"{where.path}-{where.tag}")
    return f"push-{safe}"


def _follow(settings: Settings, job: Job) -> Outcome:
    try:
        return vmjob.follow(job, show_line, show_cut)
    finally:
        with contextlib.suppress(HostError):  # a missing log must not hide how the push ended
            keep_log(settings, job)


def _write(settings: Settings, where: Reference, facts: object) -> None:
    moment = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    path = settings.image_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, outcome_json(where, dict(facts), moment).encode())  # type: ignore[call-overload]
    except OSError as error:
        raise cannot_write(path, error) from None
    print(f"wrote {path}")
