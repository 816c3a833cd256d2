"""`inv push`: push the image to the registry and record its digest in results/image.json.

The push is a job on the build VM, like the build. It gets the password through a pipe, and no file has it.
"""

import datetime
import json
from collections.abc import Mapping
from typing import Any

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from bench.records.units import format_mb
from bench.records.version import SCHEMA_VERSION, VERSION
from remote.hosts.base import Host
from remote.image import engine, vm_jobs
from remote.image.context import ContextError
from remote.image.plan import outdated_parts
from remote.image.references import Reference
from remote.image.vm_jobs import Outcome
from remote.jobs.job import Agent, HostBusy
from remote.providers import registry_provider
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.clients.build_vm import build_vm
from tasks.clients.registry import configured_image
from tasks.clients.secrets import encoded_login, registry_password
from tasks.errors import RetryableError, UsageError, results_write_errors, translate_errors
from tasks.image import build_profiles, jobs
from tasks.image.build import engine_client, image_labels, image_record, image_spec
from tasks.settings.load import Settings, load

FACTS = ("digest", "size_bytes", "compressed_bytes", "labels", "image_id", "requires")  # in the record of a push


def push_image(context: Context, *, dry_run: bool, force: bool, cancel: bool) -> CommandResult | None:
    refuse_several("push", {"--cancel": cancel, "--dry-run": dry_run, "--force": force and cancel})
    settings = load(context)
    if cancel:
        with build_vm(settings, format_command("push", cancel=True)) as host:
            jobs.cancel(vm_jobs.create_agent(host), "push")
        return None
    reference, user = configured_image(settings)
    image = build_profiles.image_name(settings)
    if dry_run:
        return plan_result([f"{image} -> {reference} as {user}"], image=image, target=str(reference), user=user)
    retry_command = format_command("push", force=force)
    with build_vm(settings, retry_command) as host:
        image_id = _image_id(settings, host, image, force=force)
        request = _request(settings, reference, user, image, image_id)
        try:
            outcome = _push(settings, vm_jobs.create_agent(host), request, retry_command)
        except vm_jobs.JobFailed as failure:
            provider = registry_provider(reference.host)
            if failure.kind == "unauthorized":
                remedy = provider.texts["registry-login"]
            elif failure.kind in ("absent", "forbidden") and provider.create_repository_command is not None:
                remedy = f"if {reference.repository} does not exist, `{provider.create_repository_command}` creates it"
            else:
                raise
            raise UsageError.from_error(failure, remedy=remedy) from failure
        facts = outcome.facts
        _save_outcome(settings, reference, facts)
        result = f"pushed in {outcome.wall_time_sec:.1f} s" if facts["sent"] else "already there; nothing was sent"
        size = format_mb(facts["compressed_bytes"], 2)
        print(f"{reference.repository}@{facts['digest']} {result}; {size} in the registry")
    return None


def _image_id(settings: Settings, host: Host, image: str, *, force: bool) -> str:
    """Return the image's id. Raises UsageError if it is missing, or outdated without `force`."""
    with engine.connect(host, engine_client(settings)) as vm_engine:
        record = image_record(settings, host, vm_engine)
    with translate_errors(UsageError, ContextError):
        changed = outdated_parts(image_spec(settings, host.workdir), image_labels(record))
    if changed:
        problem = f"{image} on {host.name} is outdated: {', '.join(changed)} changed since it was built"
        if not force:
            raise UsageError(problem, remedy="`inv build` rebuilds it, `inv push --force` pushes it as it is")
        print(f"{problem}; pushing it as it is", flush=True)
    return str(record["Id"])


def _request(settings: Settings, reference: Reference, user: str, image: str, image_id: str) -> dict[str, Any]:
    """Build the job's request, without the login."""
    client = engine_client(settings)
    return {
        "docker": [client.program],
        "environment": client.environment,
        "image": image,
        "image_id": image_id,
        "host": reference.host,
        "path": reference.path,
        "tag": reference.tag,
        "user": user,
        "token_hosts": list(settings.registry.token_hosts),
    }


def _push(settings: Settings, agent: Agent, request: dict[str, Any], retry_command: str) -> Outcome:
    """Follow a running push of the same request, or start one."""
    job = jobs.matching_job(agent, "push", request, retry_command)
    if job is not None:
        print(f"{agent.host.name}: a push is already running ({job.folder}); following it", flush=True)
        return jobs.follow(settings, job, retry_command)
    job = vm_jobs.new_job(agent, "push", f"{request['path']}-{request['tag']}", request)
    user = request["user"]
    login = encoded_login(user, registry_password(settings, user, request["host"], retry_command))
    with translate_errors(RetryableError, HostBusy, remedy=f"when that has ended, `{retry_command}`"):
        vm_jobs.start(job, request, secret=login, deadline_sec=settings.image.deadline_sec)
    return jobs.follow(settings, job, retry_command)


def _save_outcome(settings: Settings, reference: Reference, facts: Mapping[str, Any]) -> None:
    """Write results/image.json: the pushed image and the digest that pods run."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": VERSION,
        "reference": str(reference),
        "repository": reference.repository,
        **{key: facts[key] for key in FACTS},
        "pushed_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    path = settings.image_file
    with results_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"wrote {path}")
