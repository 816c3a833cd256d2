"""Brings models to the build VM, as a job (`remote.image.vm_agent.fetch`) that does not need the laptop.

Starts or finds the job, feeds it its token, and sends it the files of a model that is in a cache on the laptop.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remote.hosts.bundle import inline_command
from remote.hosts.command import Secret
from remote.hosts.host import HostError, check
from remote.hosts.local import expanded
from remote.hosts.tempdirs import scratch_folder
from remote.image import vm_jobs
from remote.image.vm_agent.fetch import chosen
from remote.image.vm_agent.job import Failed
from remote.image.vm_agent.model_sources import BROUGHT, TOKEN_PIPE, files_of, snapshot_in
from remote.jobs.agent import Agent
from remote.jobs.job import Job
from remote.ssh.host import SshHost
from remote.ssh.rsync import UploadProgress, push_folder

VERB = "fetch"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
_FEED_SEC = 90.0


class FetchError(HostError):
    """A model, revision or cache that cannot be fetched; the message says which."""


class FetchRefused(HostError):
    """A cache that leads out of itself; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """One model for `folder` on the VM. `revision` None is the one that is there, or else main's commit.

    `cache` is a Hugging Face cache on the VM, `cache_here` one on this machine; without either the VM asks the hub.
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
            raise FetchError(f"{self.model!r} is no model's name; expected ORGANISATION/NAME")
        if self.revision is not None and (not _REVISION.match(self.revision) or ".." in self.revision):
            raise FetchError(f"{self.revision!r} is no revision; expected a commit, tag or branch")

    @property
    def source(self) -> str:
        return self.cache or (
            f"{self.cache_here} here" if self.cache_here else self.endpoint or "https://huggingface.co"
        )

    @property
    def request(self) -> dict[str, Any]:
        """All that is asked for, which tells one fetch from another."""
        return {**asdict(self), "cache_here": None if self.cache_here is None else str(self.cache_here)}

    def to_job(self, source: dict[str, Any], *, token: bool) -> dict[str, Any]:
        """The document that the job reads. It holds no secret: `token` says that one will be fed."""
        plain = {"model": self.model, "folder": self.folder, "endpoint": self.endpoint, "index_url": self.index_url}
        return {**plain, "revision": self.revision, "source": source, "token": token}


def find(agent: Agent, fetch: Fetch) -> Job | None:
    """The job that fetches this model now. Raises HostError if the VM is busy with another job."""
    job = vm_jobs.running(agent)
    if job is None:
        return None
    if not vm_jobs.does(job, VERB, fetch.request):
        raise HostError(f"{agent.host.name}: busy with {job.folder} of {vm_jobs.starter(job)}, which is other work")
    return job


def start(
    agent: Agent,
    fetch: Fetch,
    *,
    token: Secret | None = None,
    deadline_sec: float,
    on_progress: Callable[[UploadProgress], None] = lambda _: None,
) -> Job:
    """Start the job; with `cache_here`, send its files first. Raises FetchError and as `push_folder`."""
    source: dict[str, Any] = {"kind": "hub"}
    if fetch.cache is not None:
        source = {"kind": "cache", "path": fetch.cache}
    elif fetch.cache_here is not None:
        source = _bring(agent, fetch, on_progress, deadline_sec)
    job = vm_jobs.new(agent, VERB, fetch.model, fetch.request)
    vm_jobs.start(job, fetch.to_job(source, token=token is not None), deadline_sec=deadline_sec)
    if token is not None:
        command = inline_command(
            agent.host, "remote.image.vm_agent.scripts.send_token", f"{job.folder}/{TOKEN_PIPE}", secrets=(token,)
        )
        check(agent.host, command, agent.host.run(command, stdin=token.reveal().encode(), timeout_sec=_FEED_SEC))
    return job


def _bring(
    agent: Agent, fetch: Fetch, on_progress: Callable[[UploadProgress], None], timeout_sec: float
) -> dict[str, Any]:
    """Send the laptop's copy to the VM, beside the model's place; the source for the job's document."""
    assert fetch.cache_here is not None  # noqa: S101 - for the type checker
    try:
        cache = expanded(fetch.cache_here)
        snapshot = snapshot_in(cache, fetch.model, fetch.revision)
        files = chosen(files_of(snapshot, cache))
    except Failed as failed:
        raise (FetchRefused if failed.kind == "refused" else FetchError)(str(failed)) from None
    if not isinstance(agent.host, SshHost):
        return {"kind": "cache", "path": str(snapshot.parent.parent)}
    with _as_files(snapshot, [file["path"] for file in files]) as folder:
        push_folder(agent.host, folder, f"{fetch.folder}/{BROUGHT}", timeout_sec=timeout_sec, on_progress=on_progress)
    return {"kind": "brought", "revision": snapshot.name, "files": files}


@contextlib.contextmanager
def _as_files(snapshot: Path, names: list[str]) -> Iterator[Path]:
    """The snapshot's links as files: hard links in a temporary folder on the same disk."""
    home = snapshot.parent.parent
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(".qlora-fleet-", home))
            for name in names:
                Path(folder, name).hardlink_to((snapshot / name).resolve())
        except OSError as error:
            raise FetchError(
                f"{home}: cannot be linked to: {error.strerror}; copy the cache and name the copy"
            ) from None
        yield folder
