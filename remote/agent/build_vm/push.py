"""Push of an image from the build VM, verified by the registry's content instead of the engine's report.

A lost reply looks like a failure although the registry has everything, and a lost blob may look like a success. The
registry is therefore queried before each retry and at the end.

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
    login, image_id = read_secret(), job["image_id"]
    registry = Registry(job["host"], job["path"], login, job["token_hosts"])
    reference = f"{job['host']}/{job['path']}:{job['tag']}"
    pushed = manifest_with_retries(job_log, registry, job["tag"])
    sent = not is_same_image(pushed, image_id) or lacks_parts(job_log, registry, reference, pushed)
    if sent:
        tag_image(job["docker"], image_id, f"{job['host']}/{job['path']}", job["tag"])
        registry.check_push_access()
        pushed = push_until_confirmed(job_log, job, registry, login)
    else:
        job_log.add(f"{reference} already has this image; nothing to send", "push")
    assert pushed is not None  # noqa: S101 - for the type checker
    digest, manifest = pushed
    parts = [manifest.get("config"), *(manifest.get("layers") or ())]
    sizes = [part.get("size") if isinstance(part, dict) else None for part in parts]
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise VmAgentError("refused", f"{reference}: its manifest has parts without a valid size")
    # Queried by its digest: another user may move the tag at any time, and pods run the digest.
    if registry.manifest(digest) is None:
        raise VmAgentError("transient", f"{reference}: the registry does not have {digest}, which it just returned")
    job_log.add(f"{reference}@{digest}: confirmed by the registry", "confirmed")
    return {"digest": digest, "compressed_bytes": sum(sizes), "sent": sent}


def push_until_confirmed(
    job_log: JobLog, job: dict[str, Any], registry: Registry, login: str
) -> tuple[str, dict[str, Any]]:
    """Push until the registry has the image; retry transient failures."""
    name, tag = f"{job['host']}/{job['path']}", job["tag"]

    def push_once() -> tuple[str, dict[str, Any]]:
        registry.check_challenge()
        failure: VmAgentError | None = None
        try:
            push_image(job_log, job["docker"], name, tag, login)
        except VmAgentError as error:
            if error.kind in ("unauthorized", "forbidden"):
                raise registry.push_refusal(error.kind, str(error)) from error
            if error.kind == "full":
                remedy = "delete unused images there, or have its quota raised"
                raise VmAgentError("full", error.problem, remedy=remedy) from error
            failure = error
        pushed = manifest_with_retries(job_log, registry, tag)
        if pushed is not None and is_same_image(pushed, job["image_id"]):
            if not lacks_parts(job_log, registry, f"{name}:{tag}", pushed):
                if failure is not None:
                    job_log.add(f"the push failed ({failure}), but the registry has all of it", "push")
                return pushed
            raise failure or VmAgentError("transient", f"{name}:{tag}: the registry lacks parts of it")
        raise failure or VmAgentError(
            "refused", f"{name}:{tag} is now another image: another user moved the tag during this push"
        )

    return with_retries(push_once, FIRST_WAIT_SEC, job_log.add)


def lacks_parts(job_log: JobLog, registry: Registry, reference: str, pushed: tuple[str, dict[str, Any]] | None) -> bool:
    """Return True if the registry has the manifest without all of its parts, as after a garbage collection."""
    assert pushed is not None  # noqa: S101 - for the type checker
    missing = with_retries(lambda: registry.missing_blobs(pushed[1]), FIRST_WAIT_SEC, job_log.add)
    if missing:
        job_log.add(f"{reference}: the registry lacks {', '.join(missing)}", "push")
    return bool(missing)


def is_same_image(pushed: tuple[str, dict[str, Any]] | None, image_id: str) -> bool:
    """Compare by the config's digest, or by the manifest's, which is the image id with the containerd image store."""
    config = {} if pushed is None else pushed[1].get("config")
    return pushed is not None and image_id in (pushed[0], config.get("digest") if isinstance(config, dict) else None)


def manifest_with_retries(job_log: JobLog, registry: Registry, tag: str) -> tuple[str, dict[str, Any]] | None:
    """Return digest and manifest of the tag, or None; retry while the registry does not respond."""
    return with_retries(lambda: registry.manifest(tag), FIRST_WAIT_SEC, job_log.add)
