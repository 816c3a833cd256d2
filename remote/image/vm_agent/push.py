"""On the build VM: pushes an image. The registry's own answer counts, not the client's exit code.

A reply that is lost after the registry has everything looks like a failure, and a lost blob may look like success. So
the registry is asked what it has before anything is sent again, and at the end.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

from remote.image.vm_agent.client import ask, follow, follow_push, reason
from remote.image.vm_agent.job import ATTEMPTS, Failed, Watcher, with_retries
from remote.image.vm_agent.registry.api import Registry, login_of, may_not, size_of

FIRST_WAIT_SEC = 2.0


def act(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return push(watcher, job)
    finally:
        shutil.rmtree(job["login"], ignore_errors=True)


def push(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    docker, environment = [*job["docker"], "--config", job["login"]], job["environment"]
    images = ask(docker, environment, "image", "inspect", job["image"])
    if images is None:
        raise Failed("usage", f"the engine has no image {job['image']}; `inv build` makes it")
    image = images[0]
    if image["Id"] != job["image_id"]:
        raise Failed("changed", f"{job['image']} was built anew since this push was typed")
    registry = Registry(job["host"], job["path"], login_of(job["login"], job["host"]), job["token_hosts"])
    reference = f"{job['host']}/{job['path']}:{job['tag']}"
    there = push_with_retries(watcher, registry, job["tag"])
    sent = not is_this(there, image["Id"])
    if sent:
        code, lines = follow(watcher, [*docker, "tag", image["Id"], reference], environment)
        if code != 0:
            raise reason(lines, code)
        registry.check_may_push()
        there = send(watcher, docker, environment, registry, reference, job["tag"], image["Id"])
    else:
        watcher.say(f"{reference} has this image already; nothing is sent", "push")
    assert there is not None  # noqa: S101 - for the type checker
    digest, manifest = there
    parts = [manifest.get("config"), *(manifest.get("layers") or ())]
    sizes = [size for part in parts if (size := size_of(part)) is not None]
    if len(sizes) < len(parts):
        raise Failed("refused", f"{reference}: its manifest does not say what it is made of")
    # By its digest: somebody may move the tag at any moment, and pods run the digest.
    if registry.manifest(digest) is None:
        raise Failed("transient", f"{reference}: the registry does not have {digest}, which it has just named")
    watcher.say(f"{reference}@{digest}: confirmed by the registry", "confirmed")
    # What the image's base says of the drivers on which it starts.
    variables = dict(one.split("=", 1) for one in image["Config"].get("Env") or () if "=" in one)
    return {
        "digest": digest,
        "size_bytes": image["Size"],
        "compressed_bytes": sum(sizes),
        "labels": image["Config"].get("Labels") or {},
        "requires": variables.get("NVIDIA_REQUIRE_CUDA"),
        "sent": sent,
    }


def send(
    watcher: Watcher,
    docker: list[str],
    environment: dict[str, str],
    registry: Registry,
    reference: str,
    tag: str,
    image_id: str,
) -> tuple[str, dict[str, Any]]:
    """Push until the registry has it; transient failures are tried again, ATTEMPTS times in all."""
    for attempt in range(1, ATTEMPTS + 1):
        code, lines = follow_push(watcher, [*docker, "push", reference], environment, registry.host)
        failure = reason(lines, code) if code != 0 else None
        if failure is not None and failure.kind == "unauthorized":
            raise Failed("unauthorized", f"{registry.host} refuses user {registry.user} for {registry.path}: {failure}")
        if failure is not None and failure.kind == "forbidden":
            raise Failed("forbidden", may_not(registry.host, registry.user, registry.path, str(failure)))
        there = push_with_retries(watcher, registry, tag)
        if is_this(there, image_id):
            if failure is not None:
                watcher.say(f"the client failed ({failure}), but the registry has all of it", "push")
            assert there is not None  # noqa: S101 - for the type checker
            return there
        if failure is None:
            raise Failed("refused", f"{reference} is another image now: somebody moved the tag while this was pushed")
        if failure.kind != "transient" or attempt == ATTEMPTS:
            raise failure
        watcher.say(f"attempt {attempt} of {ATTEMPTS}: {failure}; again", "push")
        time.sleep(FIRST_WAIT_SEC * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def is_this(there: tuple[str, dict[str, Any]] | None, image_id: str) -> bool:
    """An engine names an image by its config's digest, or by its manifest's where containerd keeps its images."""
    config = {} if there is None else there[1].get("config")
    return there is not None and image_id in (there[0], config.get("digest") if isinstance(config, dict) else None)


def push_with_retries(watcher: Watcher, registry: Registry, tag: str) -> tuple[str, dict[str, Any]] | None:
    """What the tag is in the registry; asked again while it does not answer."""
    return with_retries(lambda: registry.manifest(tag), FIRST_WAIT_SEC, watcher.say)
