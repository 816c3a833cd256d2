"""`inv push`: the image into the registry, and the registry's digest of it into results/image.json.

The push is a job on the build VM, as the build is. This machine has the password, keeps it in memory, and logs in once
more if the registry stops accepting it halfway.
"""

import contextlib
import datetime
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from remote.hosts.command import Secret
from remote.hosts.host import Host, HostError
from remote.image import engine, registry, vm_jobs
from remote.image.context import ContextError
from remote.image.plan import outdated
from remote.image.references import Reference, is_ocir
from remote.image.registry import outcome_json
from remote.image.vm_jobs import Outcome
from remote.jobs.agent import Agent
from remote.jobs.job import HostBusy
from tasks.cli.terminal import asks
from tasks.clients.build_vm import build_vm, build_vm_job
from tasks.clients.registry import address
from tasks.clients.secrets import registry_password
from tasks.errors import RetryableError, UsageError, translate_errors, writing
from tasks.image import build_profiles, jobs
from tasks.image.build import client, wanted
from tasks.image.sbom.sign import sign, signing_key
from tasks.settings.load import Settings, load

AGAIN = "inv push"
MAKES = "inv tenancy.repository"
STOP = ", `inv push --cancel` stops it"
LOGINS = 2  # a token may expire between the first layer and the last


def push_image(context: Context, *, dry_run: bool, stale: bool, cancel: bool) -> None:
    settings = load(context)
    if cancel:
        with build_vm(settings, f"{AGAIN} --cancel") as host:
            jobs.cancel(vm_jobs.agent_on(host), "push")
        return
    where, user = address(settings)
    image = build_profiles.image_name(settings)
    if dry_run:
        print(f"{image} -> {where} as {user}; nothing was touched")
        return
    again = f"{AGAIN} --stale" if stale else AGAIN
    key = signing_key(settings)
    password = functools.cache(lambda: registry_password(settings, user, where.host, again))  # asked for once
    with build_vm_job(settings, again, STOP) as host:
        image_id = _image_id(settings, host, image, stale=stale)
        request = _request(settings, where, user, image, image_id)
        try:
            outcome = _work(settings, vm_jobs.agent_on(host), request, password, again)
        except vm_jobs.JobFailed as failure:
            if failure.kind not in ("absent", "forbidden") or not repository_made(settings, where):
                raise
            outcome = _work(settings, vm_jobs.agent_on(host), request, password, again)
        facts = outcome.facts
        _write(settings, where, facts)
        how = f"pushed in {outcome.wall_time_sec:.1f} s" if facts["sent"] else "was there already; nothing was sent"
        print(f"{where.repository}@{facts['digest']} {how}; {facts['compressed_bytes'] / 1e6:.2f} MB in the registry")
        if key is not None:
            sign(settings, host, where, facts["digest"], (user, password()), key)


def repository_made(settings: Settings, where: Reference) -> bool:
    """Ask whether the tenancy is to make the repository that is not there, and have it made; False where not.

    OCIR answers 403 as well where a repository does not exist. Without a terminal nothing is asked: the failure of the
    push names the command.
    """
    if not is_ocir(where.host) or not asks(f"{where.repository} may not be there. `{MAKES}` now?"):
        return False
    argv = (sys.executable, "-m", "invoke", *MAKES.split()[1:])  # a process of its own: Oracle's SDK is optional
    environment = {**os.environ, "INVOKE_REGISTRY_IMAGE": str(where)}
    return subprocess.run(argv, cwd=settings.root, env=environment, check=False).returncode == 0


def _image_id(settings: Settings, host: Host, image: str, *, stale: bool) -> str:
    """The image to push. Raises UsageError where there is none, or one of other sources that is not asked for."""
    facts = engine.inspect(host, client(settings), image)
    if facts is None:
        raise UsageError(f"{host.name}: no image {image} there; `inv build` makes it")
    with translate_errors(UsageError, ContextError):
        differs = outdated(wanted(settings, host.workdir), dict(facts.get("Config", {}).get("Labels") or {}))
    if differs:
        what = f"{image} on {host.name} is not of the sources here: {', '.join(differs)} changed since it was built"
        if not stale:
            raise UsageError(f"{what}; `inv build` makes it anew, `inv push --stale` pushes it as it is")
        print(f"{what}; pushing it as it is", flush=True)
    return str(facts["Id"])


def _request(settings: Settings, where: Reference, user: str, image: str, image_id: str) -> dict[str, Any]:
    """The whole work, without the login."""
    how = client(settings)
    return {
        "docker": [how.program],
        "environment": how.environment,
        "image": image,
        "image_id": image_id,
        "host": where.host,
        "path": where.path,
        "tag": where.tag,
        "user": user,
        "token_hosts": list(settings.registry.token_hosts),
    }


def _work(
    settings: Settings, agent: Agent, request: dict[str, Any], password: Callable[[], Secret], again: str
) -> Outcome:
    """Follow the push that does the same, or log in and start one."""
    job = vm_jobs.running(agent)
    if job is not None:
        if not vm_jobs.does(job, "push", request):
            raise jobs.busy(job, again)
        print(f"{agent.host.name}: a push is running already ({job.folder}); following it", flush=True)
        return jobs.follow(settings, job)
    host, user = request["host"], request["user"]
    secret = password()
    for login in range(1, LOGINS + 1):
        folder = registry.log_in(agent.host, client(settings), host, user, secret)
        job = vm_jobs.new(agent, "push", f"{request['path']}-{request['tag']}", request)
        try:
            vm_jobs.start(job, {**request, "login": folder}, deadline_sec=settings.image.deadline_sec)
        except HostBusy as busy:
            registry.forget(agent.host, folder)
            raise RetryableError(f"{busy}; when that has ended, `{again}`") from None
        try:
            return jobs.follow(settings, job)
        except vm_jobs.JobFailed as failure:
            with contextlib.suppress(HostError):  # the job does so itself, unless it was killed
                registry.forget(agent.host, folder)
            if failure.kind != "unauthorized" or login == LOGINS:
                raise
            print(f"{host}: no longer logged in ({failure}); logging in once more", flush=True)
    raise AssertionError("unreachable")


def _write(settings: Settings, where: Reference, facts: Mapping[str, Any]) -> None:
    moment = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    path = settings.image_file
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, outcome_json(where, dict(facts), moment).encode())
    print(f"wrote {path}")
