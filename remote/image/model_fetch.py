"""Fetching of models to the build VM, as a job (`remote.agent.build_vm.fetch`) that does not need the laptop.

Starts or finds the job, sends it its token, and uploads the files of a model that is in a cache on the laptop.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.model_files import (
    UPLOAD_FOLDER,
    find_snapshot,
    resolve_inside,
    select_files,
    snapshot_files,
)
from remote.hosts.base import HostError
from remote.hosts.command import Secret
from remote.hosts.local import expand_user
from remote.hosts.ssh.host import SshHost
from remote.image import vm_jobs
from remote.jobs import transfer
from remote.jobs.job import Agent, Job

VERB = "fetch"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")


class FetchError(HostError):
    """Error raised for a model, revision or cache that cannot be fetched."""


class CacheUnsafe(HostError):
    """Error raised for a cache with a link to a path outside it."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Request for one model in `folder` on the VM. `revision` None means the one in the folder, or else main's commit.

    `cache` is a Hugging Face cache on the VM, `cache_here` one on this machine; without either the source is the hub.
    """

    model: str
    folder: str
    revision: str | None = None
    endpoint: str | None = None
    index_url: str | None = None
    cache: str | None = None
    cache_here: Path | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.model) or ".." in self.model:
            raise FetchError(f"{self.model!r} is not a model name", remedy="expected ORGANISATION/NAME")
        if self.revision is not None and (not _REVISION.match(self.revision) or ".." in self.revision):
            raise FetchError(f"{self.revision!r} is not a revision", remedy="expected a commit, tag or branch")

    @property
    def source(self) -> str:
        return self.cache or (
            f"{self.cache_here} here" if self.cache_here else self.endpoint or "https://huggingface.co"
        )

    @property
    def request(self) -> dict[str, Any]:
        """All fields, as JSON values: equal for equal fetches."""
        return {**asdict(self), "cache_here": None if self.cache_here is None else str(self.cache_here)}


def start(
    agent: Agent,
    fetch: Fetch,
    *,
    token: Secret | None = None,
    deadline_sec: float,
    client_lock: str = "",
    on_progress: Callable[[int, int], None] = lambda _sent, _total: None,
) -> Job:
    """Start the job; with `cache_here`, upload its files first. Raises FetchError and like `transfer.push`.

    The job's document has no secret: the token is sent separately. `client_lock` pins the packages of the hub's client,
    for a VM without one.
    """
    source: dict[str, Any] = {"kind": "hub"}
    if fetch.cache is not None:
        source = {"kind": "cache", "path": fetch.cache}
    elif fetch.cache_here is not None:
        source = _upload_cache(agent, fetch, on_progress, deadline_sec)
    job = vm_jobs.new_job(agent, VERB, fetch.model, fetch.request)
    document = {**fetch.request, "source": source, "token": token is not None, "client_lock": client_lock}
    vm_jobs.start(job, document, secret=token, deadline_sec=deadline_sec)
    return job


def _upload_cache(
    agent: Agent, fetch: Fetch, on_progress: Callable[[int, int], None], timeout_sec: float
) -> dict[str, Any]:
    """Upload the laptop's copy into the model's folder on the VM. Returns the source for the job document."""
    assert fetch.cache_here is not None  # noqa: S101 - for the type checker
    try:
        cache = expand_user(fetch.cache_here)
        snapshot = find_snapshot(cache, fetch.model, fetch.revision)
        files = select_files(snapshot_files(snapshot, cache))
        paths = {file["path"]: resolve_inside(cache, snapshot / file["path"]) for file in files}
    except VmAgentError as failed:
        raise (CacheUnsafe if failed.kind == "refused" else FetchError)(str(failed)) from failed
    if not isinstance(agent.host, SshHost):
        return {"kind": "cache", "path": str(snapshot.parent.parent)}
    target = f"{fetch.folder}/{UPLOAD_FOLDER}"
    try:
        transfer.push(agent, paths, target, timeout_sec=timeout_sec, on_progress=on_progress)
    except OSError as error:
        raise FetchError(f"{error.filename}: {error.strerror}", remedy="make it readable") from error
    return {"kind": "brought", "revision": snapshot.name, "files": files}
