"""Sources of a model for `remote.agent.build_vm.fetch`: the hub, or a Hugging Face cache."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from remote.agent.build_vm.client import MAX_OUTPUT_BYTES, STALL_TIMEOUT_SEC, run_logged
from remote.agent.build_vm.job import PROGRESS_INTERVAL_SEC, JobLog, report_progress
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.files import CHUNK_BYTES
from remote.agent.shared.model_files import Entry, find_snapshot, resolve_inside, snapshot_files
from remote.agent.shared.registry_api import is_loopback_http

_FIRST_WAIT_SEC = 1.0


def create_source(job_log: JobLog, job: dict[str, Any], token: str | None) -> HubSource | CacheSource:
    """Create the source of a model. Its methods list a commit's files and copy one; both raise VmAgentError."""
    if job["cache"] is None:
        return HubSource(job_log, job, token)
    return CacheSource(Path(job["cache"]), job["model"], job["revision"])


class HubSource:
    """The hub, through a process that runs its own client (`hf_hub`).

    All requests share one process, because its imports take longer than a small file. It exits when this process closes
    its pipe. After an error the next request starts a new process.
    """

    def __init__(self, job_log: JobLog, job: dict[str, Any], token: str | None) -> None:
        endpoint = job["endpoint"] or os.environ.get("HF_ENDPOINT")
        if token and endpoint and not (endpoint.lower().startswith("https://") or is_loopback_http(endpoint)):
            raise VmAgentError(
                "usage",
                f"HF_ENDPOINT: {endpoint} in this machine's environment: the token of hub.token_file would be sent "
                "over plain HTTP",
                remedy="set hub.endpoint to https://..., or hub.token_file to null",
            )
        self._job_log, self._job, self._token = job_log, {**job, "endpoint": endpoint}, token
        self._python = python_with_hub_client(job_log, job["index_url"], job.get("client_lock") or "")
        self._commit = ""
        self._client: subprocess.Popen[bytes] | None = None

    def list_files(self) -> tuple[str, list[Entry]]:
        answer = self._request({"verb": "list", "revision": self._job["revision"] or "main"})
        self._commit = str(answer["revision"])
        for entry in answer["files"]:
            digest = entry["sha256"] or entry["git_sha1"]
            if not (isinstance(entry["path"], str) and isinstance(entry["size"], int) and isinstance(digest, str)):
                hub = self._job["endpoint"] or "the hub"
                raise VmAgentError(
                    "refused", f"{hub} lists {entry['path']!r} without size and digest", remedy="choose another source"
                )
        return self._commit, list(answer["files"])

    def fetch(self, entry: Entry, folder: Path) -> None:
        name, total = entry["path"], entry["size"] or 0

        def read_sizes() -> list[int]:  # includes partial files of an earlier fetch
            sizes = list[int]()
            for path in (folder / name, *(folder / ".cache").rglob("*.incomplete")):
                with contextlib.suppress(OSError):  # missing, or just renamed
                    sizes.append(path.stat().st_size)
            return sizes

        with report_progress(self._job_log, f"fetching {name}", lambda: (max(read_sizes(), default=0), total)):
            self._request({"verb": "fetch", "revision": self._commit, "path": name}, read_sizes)

    def _request(self, fields: dict[str, Any], read_sizes: Callable[[], list[int]] = list) -> dict[str, Any]:
        return with_retries(lambda: self._request_once(fields, read_sizes), _FIRST_WAIT_SEC, self._job_log.add)

    def _request_once(self, fields: dict[str, Any], read_sizes: Callable[[], list[int]]) -> dict[str, Any]:
        job = self._job
        common = {"model": job["model"], "endpoint": job["endpoint"], "folder": job["folder"], "token": self._token}
        request = {**common, "home": str(Path.cwd() / "hub-home"), **fields}
        client, self._client = self._client or start_client(self._python, job["endpoint"]), None
        try:
            with contextlib.suppress(BrokenPipeError):
                cast("IO[bytes]", client.stdin).write(json.dumps(request).encode() + b"\n")
                cast("IO[bytes]", client.stdin).flush()
            self._wait_for_reply(client, read_sizes)
            reply = cast("IO[bytes]", client.stdout).readline(MAX_OUTPUT_BYTES)
            if not reply.endswith(b"\n"):  # it ended, or its reply is too long
                raise VmAgentError("failed", "the hub's client gave no complete reply", remedy="see the log")
            answer: dict[str, Any] = json.loads(reply)
            if not answer["ok"]:
                raise VmAgentError(answer["kind"], answer["message"], remedy=answer["remedy"])
        except BaseException:
            client.kill()
            client.wait()
            raise
        self._client = client
        return answer

    def _wait_for_reply(self, client: subprocess.Popen[bytes], read_sizes: Callable[[], list[int]]) -> None:
        """Wait for the client's reply. Raises VmAgentError after STALL_TIMEOUT_SEC without progress.

        Without this limit the client would sleep for as long as the hub's Retry-After says.
        """
        sizes, changed_at = read_sizes(), time.monotonic()
        while not select.select([cast("IO[bytes]", client.stdout)], [], [], PROGRESS_INTERVAL_SEC)[0]:
            previous, sizes = sizes, read_sizes()
            changed_at = changed_at if sizes == previous else time.monotonic()
            if time.monotonic() - changed_at >= STALL_TIMEOUT_SEC:
                hub, minutes = self._job["endpoint"] or "the hub", STALL_TIMEOUT_SEC / 60
                hint = "check whether it is down, or limits this machine's request rate (see the log)"
                raise VmAgentError("transient", f"{hub} has sent nothing for {minutes:.0f} min", remedy=hint)


class CacheSource:
    """A Hugging Face cache on this machine: HF_HOME, its `hub`, or one model's folder in it."""

    def __init__(self, path: Path, model: str, revision: str | None) -> None:
        self._path, self._snapshot = path, find_snapshot(path, model, revision)

    def list_files(self) -> tuple[str, list[Entry]]:
        return self._snapshot.name, snapshot_files(self._snapshot, self._path)

    def fetch(self, entry: Entry, folder: Path) -> None:
        part = folder / f".{entry['path']}.part"
        part.unlink(missing_ok=True)
        source = resolve_inside(self._path, self._snapshot / entry["path"])
        # O_NOFOLLOW: the checked file may have been replaced by a link since.
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file, part.open("xb") as copy:
            shutil.copyfileobj(file, copy, CHUNK_BYTES)
        part.replace(folder / entry["path"])


# --- the client and the token -----------------------------------------------------------------------------------------


def start_client(python: str, endpoint: str | None) -> subprocess.Popen[bytes]:
    argv = [python, str(Path(__file__).with_name("hf_hub.py"))]
    environment = {**os.environ, **({"HF_ENDPOINT": endpoint} if endpoint else {})}
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def python_with_hub_client(job_log: JobLog, index_url: str | None, lock: str) -> str:
    """Return a Python with huggingface_hub: this one, or a virtual environment's, created once next to the jobs.

    `lock` pins all packages of the environment with their hashes: they will be given the hub's token.
    """
    if importlib.util.find_spec("huggingface_hub") is not None:
        return sys.executable
    home = Path.cwd().parent.parent / "hub-client"
    python, ready = home / "bin" / "python", home / "ready"
    lock_digest = hashlib.sha256(lock.encode()).hexdigest()
    with contextlib.suppress(OSError):
        if ready.read_text() == lock_digest:
            return str(python)
    requirements = Path.cwd() / "hub-client.txt"
    requirements.write_text(lock)
    job_log.add(f"installing huggingface_hub, pinned with hashes, into {home}", "preparing")
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [
            *(str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"),
            *("--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements)),
            *(("--index-url", index_url) if index_url else ()),
        ],
    )
    for step in steps:
        code, lines = run_logged(job_log, step)
        if code != 0:
            reason = (lines or [f"exit {code}"])[-1][:200]
            raise VmAgentError(
                "usage",
                f"huggingface_hub is not on the VM and cannot be installed ({reason})",
                remedy="install python3-venv "
                "there and set image.index_url to a reachable package index, or fetch the model from a cache (--cache)",
            )
    ready.write_text(lock_digest)
    return str(python)
