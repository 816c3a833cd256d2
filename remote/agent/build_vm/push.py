"""Push of an image from the build VM, verified by the registry's content instead of the client's exit code.

A lost reply looks like a failure although the registry has everything, and a lost blob may look like a success. The
registry is therefore queried before each retry and at the end.
"""

from __future__ import annotations

import shutil
from typing import Any

from remote.agent.build_vm.client import classify_failure, query, run_logged, run_push
from remote.agent.build_vm.job import JobLog
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.registry_api import Registry, push_forbidden_message, read_login

FIRST_WAIT_SEC = 2.0


def run(job_log: JobLog, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return push(job_log, job)
    finally:
        shutil.rmtree(job["login"], ignore_errors=True)


def push(job_log: JobLog, job: dict[str, Any]) -> dict[str, Any]:
    docker, environment = [*job["docker"], "--config", job["login"]], job["environment"]
    images = query(docker, environment, "image", "inspect", job["image"])
    if images is None:
        raise VmAgentError("usage", f"the engine has no image {job['image']}", remedy="build it with `inv build`")
    image = images[0]
    if image["Id"] != job["image_id"]:
        raise VmAgentError("changed", f"{job['image']} was rebuilt after this push started")
    registry = Registry(job["host"], job["path"], read_login(job["login"], job["host"]), job["token_hosts"])
    reference = f"{job['host']}/{job['path']}:{job['tag']}"
    pushed = manifest_with_retries(job_log, registry, job["tag"])
    sent = not is_same_image(pushed, image["Id"]) or lacks_parts(job_log, registry, reference, pushed)
    if sent:
        code, lines = run_logged(job_log, [*docker, "tag", image["Id"], reference], environment)
        if code != 0:
            raise classify_failure(lines, code)
        registry.check_push_access()
        pushed = push_until_confirmed(job_log, docker, environment, registry, reference, job["tag"], image["Id"])
    else:
        job_log.add(f"{reference} already has this image; nothing to send", "push")
    assert pushed is not None  # noqa: S101 - for the type checker
    digest, manifest = pushed
    parts = [manifest.get("config"), *(manifest.get("layers") or ())]
    sizes = [size for part in parts if (size := size_of(part)) is not None]
    if len(sizes) < len(parts):
        raise VmAgentError("refused", f"{reference}: its manifest has parts without a valid size")
    # Queried by its digest: another user may move the tag at any time, and pods run the digest.
    if registry.manifest(digest) is None:
        raise VmAgentError("transient", f"{reference}: the registry does not have {digest}, which it just returned")
    job_log.add(f"{reference}@{digest}: confirmed by the registry", "confirmed")
    # The base image's environment has the driver versions that it requires.
    variables = dict(variable.split("=", 1) for variable in image["Config"].get("Env") or () if "=" in variable)
    return {
        "digest": digest,
        "image_id": image["Id"],
        "size_bytes": image["Size"],
        "compressed_bytes": sum(sizes),
        "labels": image["Config"].get("Labels") or {},
        "requires": variables.get("NVIDIA_REQUIRE_CUDA"),
        "sent": sent,
    }


def push_until_confirmed(
    job_log: JobLog,
    docker: list[str],
    environment: dict[str, str],
    registry: Registry,
    reference: str,
    tag: str,
    image_id: str,
) -> tuple[str, dict[str, Any]]:
    """Push until the registry has the image; retry transient failures."""

    def push_once() -> tuple[str, dict[str, Any]]:
        code, lines = run_push(job_log, [*docker, "push", reference], environment, registry.host)
        failure = classify_failure(lines, code) if code != 0 else None
        if failure is not None and failure.kind == "unauthorized":
            raise VmAgentError(
                "unauthorized", f"{registry.host} refused user {registry.user} for {registry.path}: {failure}"
            )
        if failure is not None and failure.kind == "forbidden":
            raise VmAgentError(
                "forbidden", push_forbidden_message(registry.host, registry.user, registry.path, str(failure))
            )
        if failure is not None and failure.kind == "full":
            raise VmAgentError("full", failure.problem, remedy="delete unused images there, or have its quota raised")
        pushed = manifest_with_retries(job_log, registry, tag)
        if pushed is not None and is_same_image(pushed, image_id):
            if not lacks_parts(job_log, registry, reference, pushed):
                if failure is not None:
                    job_log.add(f"the client failed ({failure}), but the registry has all of it", "push")
                return pushed
            raise failure or VmAgentError("transient", f"{reference}: the registry lacks parts of it")
        raise failure or VmAgentError(
            "refused", f"{reference} is now another image: another user moved the tag during this push"
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


def size_of(descriptor: Any) -> int | None:
    """Return the size in a manifest's descriptor; None if it is missing or invalid."""
    size = descriptor.get("size") if isinstance(descriptor, dict) else None
    return size if type(size) is int and 0 <= size < 1 << 63 else None
