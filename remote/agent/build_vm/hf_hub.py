"""The model hub as the source of a model for `remote.agent.build_vm.fetch`, through the hub's own client.

A VM without huggingface_hub gets it into a virtual environment next to the jobs, whose packages this process imports.
The token stays in this process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from remote.agent.build_vm.client import STALL_TIMEOUT_SEC, run_logged
from remote.agent.build_vm.job import PROGRESS_INTERVAL_SEC, JobLog, report_progress
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.model_files import Entry
from remote.agent.shared.registry_api import is_loopback_http

Result = TypeVar("Result")
HUB_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",  # use only the operator's token, never one stored on this machine
    "HF_HUB_OFFLINE": "0",
}
LIST_MEMORY_BYTES = 768 << 20
LIST_TIMEOUT_SEC = 60.0  # without data; the client has no timeout by default
# Error classes of the client, and of the libraries below it, after which a retry may succeed.
TRANSIENT = frozenset(
    (
        *("ConnectError", "TransportError", "ConnectionError", "Timeout", "TimeoutException", "ChunkedEncodingError"),
        *("LocalEntryNotFoundError", "IncompleteRead", "RemoteProtocolError", "FileMetadataError"),
    )
)
_FIRST_WAIT_SEC = 1.0


class HubSource:
    """The hub. Its methods list a commit's files and fetch one; both raise VmAgentError."""

    def __init__(self, job_log: JobLog, job: dict[str, Any], token: str | None) -> None:
        endpoint = job["endpoint"] or os.environ.get("HF_ENDPOINT")
        if token and endpoint and not (endpoint.lower().startswith("https://") or is_loopback_http(endpoint)):
            raise VmAgentError(
                "usage",
                f"HF_ENDPOINT: {endpoint} in this machine's environment: the token of hub.token_file would be sent "
                "over plain HTTP",
                remedy="set hub.endpoint to https://..., or hub.token_file to null",
            )
        self._job_log, self._job, self._token, self._commit = job_log, {**job, "endpoint": endpoint}, token, ""
        load_client(job_log, job["index_url"], job.get("client_lock") or "")
        # Before the client is imported. Its own endpoint counts even for what it is not told.
        os.environ.update(HUB_ENVIRONMENT, HF_HOME=str(Path.cwd() / "hub-home"))
        os.environ.update({"HF_ENDPOINT": endpoint} if endpoint else {})
        if token and (endpoint or "").startswith("http:"):
            os.environ.update(NO_PROXY="*", no_proxy="*")  # the endpoint is this machine; a proxy could read the token

    def list_files(self) -> tuple[str, list[Entry]]:
        self._commit, files = self._request(self._list_commit)
        for entry in files:
            digest = entry["sha256"] or entry["git_sha1"]
            if not (isinstance(entry["path"], str) and isinstance(entry["size"], int) and isinstance(digest, str)):
                hub = self._job["endpoint"] or "the hub"
                raise VmAgentError(
                    "refused", f"{hub} lists {entry['path']!r} without size and digest", remedy="choose another source"
                )
        return self._commit, files

    def _list_commit(self) -> tuple[str, list[Entry]]:
        """Resolve the revision to a commit and list its files with size and the hub's digest."""
        from huggingface_hub import HfApi

        job, before = self._job, resource.getrlimit(resource.RLIMIT_DATA)
        # The client reads a response of any size into memory.
        resource.setrlimit(resource.RLIMIT_DATA, (LIST_MEMORY_BYTES, before[1]))
        try:
            info = HfApi(endpoint=job["endpoint"], token=self._token or False).model_info(
                job["model"], revision=job["revision"] or "main", files_metadata=True, timeout=LIST_TIMEOUT_SEC
            )
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        files: list[Entry] = [
            {
                "path": file.rfilename,
                "size": file.size,
                "sha256": file.lfs.sha256 if file.lfs else None,
                "git_sha1": None if file.lfs else file.blob_id,
            }
            for file in info.siblings or []
        ]
        return str(info.sha), files

    def fetch(self, entry: Entry, folder: Path) -> None:
        """Download one file into `folder`; resume an interrupted download."""
        name, total = entry["path"], entry["size"] or 0

        def read_sizes() -> list[int]:  # includes partial files of an earlier fetch
            sizes = list[int]()
            for path in (folder / name, *(folder / ".cache").rglob("*.incomplete")):
                with contextlib.suppress(OSError):  # missing, or just renamed
                    sizes.append(path.stat().st_size)
            return sizes

        def download() -> None:
            from huggingface_hub import hf_hub_download

            hf_hub_download(
                self._job["model"],
                name,
                revision=self._commit,
                local_dir=str(folder),
                token=self._token or False,
                endpoint=self._job["endpoint"],
            )

        with report_progress(self._job_log, f"fetching {name}", lambda: (max(read_sizes(), default=0), total)):
            self._request(download, read_sizes)

    def _request(self, action: Callable[[], Result], read_sizes: Callable[[], list[int]] = list) -> Result:
        """Run a request in another thread. Raises VmAgentError after STALL_TIMEOUT_SEC without progress.

        Without this limit the client would sleep for as long as the hub's Retry-After says.
        """
        result = Future[Result]()

        def act_once() -> Result:
            try:
                return action()
            except Exception as error:  # the client's errors have many base classes
                raise to_agent_error(self._job, error, has_token=bool(self._token)) from error

        def act() -> None:
            try:
                result.set_result(with_retries(act_once, _FIRST_WAIT_SEC, self._job_log.add))
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                result.set_exception(error)

        threading.Thread(target=act, daemon=True).start()
        sizes, changed_at = read_sizes(), time.monotonic()
        while not wait([result], PROGRESS_INTERVAL_SEC).done:
            previous, sizes = sizes, read_sizes()
            changed_at = changed_at if sizes == previous else time.monotonic()
            if time.monotonic() - changed_at >= STALL_TIMEOUT_SEC:
                hub, minutes = self._job["endpoint"] or "the hub", STALL_TIMEOUT_SEC / 60
                hint = "check whether it is down, or limits this machine's request rate (see the log)"
                raise VmAgentError("transient", f"{hub} has sent nothing for {minutes:.0f} min", remedy=hint)
        return result.result()


def to_agent_error(job: dict[str, Any], error: Exception, *, has_token: bool) -> VmAgentError:
    """Classify an error of the client."""
    names = {kind.__name__ for kind in type(error).__mro__}
    model, endpoint = job["model"], job["endpoint"] or "https://huggingface.co"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return VmAgentError("full", f"{job['folder']}: no space left on its disk")
    if "GatedRepoError" in names or (status in (401, 403) and has_token and "Repository" not in str(names)):
        cause = "this token may not read it" if has_token else "it needs a token"
        remedy = (
            f"accept its terms at {endpoint}/{model}, and set hub.token_file to a file with a token of that account"
        )
        return VmAgentError("unauthorized", f"{model} is gated: {cause}", remedy=remedy)
    if "RevisionNotFoundError" in names:
        revision = job["revision"] or "main"
        return VmAgentError("usage", f"{model} has no revision {revision!r}", remedy="choose a commit, tag or branch")
    if "RepositoryNotFoundError" in names or status in (401, 403):
        remedy = "check its name and the token's rights" if has_token else "set hub.token_file if it is private"
        return VmAgentError("usage", f"{model}: not found on the hub at {endpoint}", remedy=remedy)
    hub = f"{model}: the hub at {endpoint}"
    if isinstance(error, MemoryError):
        return VmAgentError("refused", f"{hub}: its response exceeds {LIST_MEMORY_BYTES >> 20} MiB of memory")
    message = " ".join(str(error).split())[:300] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        remedy = "on the VM set SSL_CERT_FILE to a file with its authority's certificate, or have it renewed"
        return VmAgentError("usage", f"{hub}: its certificate is not valid: {message}", remedy=remedy)
    if names & TRANSIENT or status == 429 or (status or 0) >= 500 or "Consistency check failed" in message:
        return VmAgentError("transient", f"{hub}: {message}")
    return VmAgentError("failed", f"{hub}: {type(error).__name__}: {message}")


def load_client(job_log: JobLog, index_url: str | None, lock: str) -> None:
    """Make huggingface_hub importable: as this Python has it, or from a virtual environment, created once.

    `lock` pins all packages of the environment with their hashes: they will be given the hub's token.
    """
    if importlib.util.find_spec("huggingface_hub") is not None:
        return
    home, version = Path.cwd().parent.parent / "hub-client", f"python{sys.version_info[0]}.{sys.version_info[1]}"
    ready, state = home / "ready", f"{version} {hashlib.sha256(lock.encode()).hexdigest()}"
    if not ready.is_file() or ready.read_text() != state:
        requirements = Path.cwd() / "hub-client.txt"
        requirements.write_text(lock)
        job_log.add(f"installing huggingface_hub, pinned with hashes, into {home}", "preparing")
        pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check")
        options = ("--progress-bar", "off", "--only-binary", ":all:", "--require-hashes", "--requirement")
        index = ("--index-url", index_url) if index_url else ()
        for step in (
            [sys.executable, "-m", "venv", "--clear", str(home)],
            [*pip, *options, str(requirements), *index],
        ):
            code, lines = run_logged(job_log, step)
            if code != 0:
                reason = (lines or [f"exit {code}"])[-1][:200]
                raise VmAgentError(
                    "usage",
                    f"huggingface_hub is not on the VM and cannot be installed ({reason})",
                    remedy="install python3-venv there and set image.index_url to a reachable package index, or fetch "
                    "the model from a cache (--cache)",
                )
        ready.write_text(state)
    # First: the system's older packages of the same names would take the place of the pinned ones.
    sys.path.insert(0, str(home / "lib" / version / "site-packages"))
