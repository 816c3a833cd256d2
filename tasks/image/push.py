"""`inv push`: push the image to the registry and record its digest in results/image.json.

The push is a job on the build VM, like the build. It gets the password through a pipe, and no file has it.
"""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from bench.records.units import format_mb
from bench.records.version import SCHEMA_VERSION, VERSION
from remote.hosts.command import Secret
from remote.image import engine
from remote.image.engine import EngineImage
from remote.image.plan import is_outdated
from remote.image.references import Reference
from remote.jobs.job import Agent
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import format_command, refuse_several
from tasks.clients.build_vm import build_vm
from tasks.clients.registry import configured_image, registry_refusals
from tasks.clients.secrets import encoded_login, registry_password
from tasks.errors import UsageError, results_write_errors
from tasks.image import build_profiles, vm_work
from tasks.image.build import image_spec
from tasks.settings.layers import load


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
        spec = image_spec(settings, host.workdir)
        with engine.connect(host, spec.section.client) as vm_engine:
            image = vm_engine.image(spec.image)
        if is_outdated(spec, image.labels):
            problem = f"{spec.image} on {host.name} is outdated: files, models or settings changed since it was built"
            if not force:
                raise UsageError(problem, remedy="`inv build` rebuilds it, `inv push --force` pushes it as it is")
            print(f"{problem}; pushing it as it is", flush=True)
        request = {
            "docker": [settings.image.client],
            "image_id": image.image_id,
            "host": target.host,
            "path": target.path,
            "tag": target.tag,
            "user": user,
            "token_hosts": list(settings.registry.token_hosts),
        }
        work = vm_work.plan_work(settings, command, "push", f"{target.path}-{target.tag}", request)

        def read_login(_: Agent) -> Secret:
            return encoded_login(user, registry_password(settings, user, target.host, command))

        with registry_refusals(target):
            outcome = vm_work.run(host, work, read_login)
    facts = outcome.facts
    _save_record(settings.image_file, target, image, facts)
    size = format_mb(facts["compressed_bytes"], 2)
    print(f"{target.repository}@{facts['digest']} pushed in {outcome.wall_time_sec:.1f} s; {size} in the registry")
    return None


def _save_record(path: Path, target: Reference, image: EngineImage, facts: Mapping[str, Any]) -> None:
    """Write results/image.json: the pushed image and the digest that pods run."""
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
        "pushed_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    with results_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"wrote {path}")
