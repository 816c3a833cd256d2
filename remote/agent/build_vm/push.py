"""Push of an image from the build VM, verified by the registry's content instead of the engine's report.

The engine compares each layer with the registry's before it sends it, so a retry, and a push of what is there already,
only send what is missing.

The login comes through a named pipe that is read once, and stays in this process. The engine gets it with the request
for the push, after the registry's challenge was checked: it sends the password to the address that the challenge names.
"""

from __future__ import annotations

from typing import Any

from remote.agent.build_vm.client import push_image, tag_image
from remote.agent.build_vm.job import JobLog, read_secret
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.registry_api import Registry

FIRST_WAIT_SEC = 2.0


def run(job_log: JobLog, job: dict[str, Any]) -> dict[str, Any]:
    login, name = read_secret(), f"{job['host']}/{job['path']}"
    registry = Registry(job["host"], job["path"], login, job["token_hosts"])
    tag_image(job["docker"], job["image_id"], name, job["tag"])
    registry.check_push_access()
    digest, manifest = with_retries(lambda: push(job_log, job, registry, login), FIRST_WAIT_SEC, job_log.add)
    parts = [manifest.get("config"), *(manifest.get("layers") or ())]
    sizes = [part.get("size") if isinstance(part, dict) else None for part in parts]
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise VmAgentError("refused", f"{name}:{job['tag']}: its manifest has parts without a valid size")
    job_log.add(f"{name}@{digest}: confirmed by the registry", "confirmed")
    return {"digest": digest, "compressed_bytes": sum(sizes)}


def push(job_log: JobLog, job: dict[str, Any], registry: Registry, login: str) -> tuple[str, dict[str, Any]]:
    """Push the image: the engine sends what the registry lacks. Returns what the registry then has by that tag."""
    name, tag = f"{job['host']}/{job['path']}", job["tag"]
    registry.check_challenge()
    try:
        push_image(job_log, job["docker"], name, tag, login)
    except VmAgentError as error:
        if error.kind in ("unauthorized", "forbidden"):
            raise registry.refusal(error.kind, str(error)) from error
        if error.kind == "full":
            remedy = "delete unused images there, or have its quota raised"
            raise VmAgentError("full", error.problem, remedy=remedy) from error
        raise
    pushed = registry.manifest(tag)
    if pushed is None or registry.manifest(pushed[0]) is None:  # by the digest, too, which pods run
        raise VmAgentError("transient", f"{name}:{tag}: the registry does not have what was just pushed")
    if not is_same_image(pushed, job["image_id"]):
        raise VmAgentError("refused", f"{name}:{tag} is now another image: another user moved the tag during this push")
    return pushed


def is_same_image(pushed: tuple[str, dict[str, Any]], image_id: str) -> bool:
    """Compare by the config's digest, or by the manifest's, which is the image id with the containerd image store."""
    config = pushed[1].get("config")
    return image_id in (pushed[0], config.get("digest") if isinstance(config, dict) else None)
