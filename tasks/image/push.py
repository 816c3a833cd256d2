"""`inv push`: push the image to the registry and record its digest in results/image.json.

The push is a job on the build VM, like the build. It gets the password through a pipe, and no file has it.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from bench.records.units import format_mb
from bench.records.version import SCHEMA_VERSION, VERSION
from remote.hosts.command import Secret
from remote.hosts.host_protocol import Host
from remote.image import engine, vm_jobs
from remote.image.engine import EngineImage
from remote.image.plan import ImageSpec, outdated_parts
from remote.image.references import Reference
from remote.image.vm_jobs import JobOptions, VmWork
from remote.providers import registry_provider
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.clients.build_vm import build_vm
from tasks.clients.registry import configured_image
from tasks.clients.secrets import encoded_login, registry_password
from tasks.errors import UsageError, results_write_errors
from tasks.image import build_profiles, vm_work
from tasks.image.build import image_spec
from tasks.settings.layers import load


@dataclass(frozen=True, kw_only=True)
class PushRequest:
    """A push as settings and flags ask for it. `record`: the file to write."""

    spec: ImageSpec
    target: Reference
    user: str
    token_hosts: tuple[str, ...]
    options: JobOptions
    record: Path


def push_image(context: Context, *, dry_run: bool, force: bool, cancel: bool) -> CommandResult | None:
    refuse_several("push", {"--cancel": cancel, "--dry-run": dry_run, "--force": force and cancel})
    settings, command = load(context), format_command("push", force=force, cancel=cancel)
    if cancel:
        with build_vm(settings, command) as host:
            vm_work.cancel(host, "push")
        return None
    target, user = configured_image(settings)
    if dry_run:
        name = build_profiles.image_name(settings)
        return plan_result([f"{name} -> {target} as {user}"], image=name, target=str(target), user=user)
    with build_vm(settings, command) as host:
        request = PushRequest(
            spec=image_spec(settings, host.workdir),
            target=target,
            user=user,
            token_hosts=settings.registry.token_hosts,
            options=vm_work.options(settings, command),
            record=settings.image_file,
        )
        with engine.connect(host, request.spec.client) as vm_engine:
            image = vm_engine.image(request.spec.image)
        if changed := outdated_parts(request.spec, image.labels):
            problem = (
                f"{request.spec.image} on {host.name} is outdated: {', '.join(changed)} changed since it was built"
            )
            if not force:
                raise UsageError(problem, remedy="`inv build` rebuilds it, `inv push --force` pushes it as it is")
            print(f"{problem}; pushing it as it is", flush=True)
        _push(request, host, image, partial(registry_password, settings, user, target.host, command))
    return None


def plan_push(request: PushRequest, image: EngineImage) -> VmWork:
    """Plan the job that pushes `image`, without the login."""
    target, client = request.target, request.spec.client
    document = {
        "docker": [client.program],
        "environment": client.environment,
        "image_id": image.image_id,
        "host": target.host,
        "path": target.path,
        "tag": target.tag,
        "user": request.user,
        "token_hosts": list(request.token_hosts),
    }
    return VmWork(verb="push", name=f"{target.path}-{target.tag}", request=document, options=request.options)


def _push(request: PushRequest, host: Host, image: EngineImage, password: Callable[[], Secret]) -> None:
    """Push the image, or follow the push that runs, and write the record. Raises the errors of `build_vm`."""
    target = request.target
    try:
        work = plan_push(request, image)
        outcome = vm_work.run(host, work, lambda _: encoded_login(request.user, password()))
    except vm_jobs.JobFailed as failure:
        provider = registry_provider(target.host)
        if failure.kind == "unauthorized":
            remedy = provider.texts["registry-login"]
        elif failure.kind in ("absent", "forbidden") and provider.create_repository_command is not None:
            remedy = f"if {target.repository} does not exist, `{provider.create_repository_command}` creates it"
        else:
            raise
        raise UsageError.from_error(failure, remedy=remedy) from failure
    facts = outcome.facts
    _save_record(request, image, facts)
    result = f"pushed in {outcome.wall_time_sec:.1f} s" if facts["sent"] else "already there; nothing was sent"
    print(f"{target.repository}@{facts['digest']} {result}; {format_mb(facts['compressed_bytes'], 2)} in the registry")


def _save_record(request: PushRequest, image: EngineImage, facts: Mapping[str, Any]) -> None:
    """Write results/image.json: the pushed image and the digest that pods run."""
    target, path = request.target, request.record
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": VERSION,
        "reference": str(target),
        "repository": target.repository,
        "digest": facts["digest"],
        "size_bytes": image.size,
        "compressed_bytes": facts["compressed_bytes"],
        "labels": dict(image.labels),
        "image_id": image.image_id,
        # The base image's environment has the driver versions that it requires.
        "requires": image.environment.get("NVIDIA_REQUIRE_CUDA"),
        "pushed_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    with results_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"wrote {path}")
