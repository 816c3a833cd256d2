"""Where `remote.image.vm_agent.fetch` gets a model from: the hub, a Hugging Face cache, or files sent from the laptop."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol, cast

from remote.image.vm_agent.client import ANSWER_BYTES, STALL_ENDS_SEC
from remote.image.vm_agent.job import Failed, Watcher, with_retries
from remote.image.vm_agent.registry.api import is_here
from remote.jobs.host_agent.files import PIECE

BROUGHT = ".brought"  # below a model's folder: files from the laptop, to be verified
TOKEN_PIPE = "token.pipe"  # noqa: S105 - a name
HUB_CLIENT = "huggingface_hub>=0.30,<3"
_TOKEN_SEC, _TOKEN_BYTES = 120.0, 1 << 16
_FIRST_WAIT_SEC = 1.0
_SHOWN_EVERY_SEC = 2.0
_REF_BYTES = 256
Entry = dict[str, Any]


class Source(Protocol):
    """Lists a model's commit and files, and copies each into a folder. Both raise Failed."""

    def listed(self) -> tuple[str, list[Entry]]: ...

    def fetch(self, entry: Entry, into: Path) -> None: ...


def source_of(watcher: Watcher, job: dict[str, Any], token: str | None) -> Source:
    asked = job["source"]
    if asked["kind"] == "hub":
        return HubSource(watcher, job, token)
    if asked["kind"] == "cache":
        return Cache(Path(asked["path"]), job["model"], job["revision"])
    return UploadedSource(Path(job["folder"]) / BROUGHT, asked["revision"], asked["files"])


class HubSource:
    """The hub, through its own client: one process for all questions, as its imports take longer than a small file. It
    ends with this one, whose pipe it reads; after an error the next question goes to a new one."""

    def __init__(self, watcher: Watcher, job: dict[str, Any], token: str | None) -> None:
        endpoint = job["endpoint"] or os.environ.get("HF_ENDPOINT")
        if token and endpoint and not (endpoint.lower().startswith("https://") or is_here(endpoint)):
            raise Failed(
                "usage",
                f"HF_ENDPOINT: {endpoint}, as this machine has it: the token of hub.token_file would travel over plain "
                "HTTP; set hub.endpoint to https://..., or hub.token_file to null",
            )
        self._watcher, self._job, self._token = watcher, {**job, "endpoint": endpoint}, token
        self._python = hub_python(watcher, job["index_url"])
        self._commit = ""
        self._client: subprocess.Popen[bytes] | None = None

    def listed(self) -> tuple[str, list[Entry]]:
        answer = self._ask({"verb": "list", "revision": self._job["revision"] or "main"})
        self._commit = str(answer["revision"])
        for entry in answer["files"]:
            digest = entry["sha256"] or entry["git_sha1"]
            if not (isinstance(entry["path"], str) and isinstance(entry["size"], int) and isinstance(digest, str)):
                where = self._job["endpoint"] or "the hub"
                raise Failed("refused", f"{where} lists {entry['path']!r} without size and digest; name another source")
        return self._commit, list(answer["files"])

    def fetch(self, entry: Entry, into: Path) -> None:
        name, total = entry["path"], entry["size"] or 0

        def sizes() -> list[int]:  # also of what an earlier fetch has left
            found = list[int]()
            for path in (into / name, *(into / ".cache").rglob("*.incomplete")):
                with contextlib.suppress(OSError):  # not there, or renamed a moment ago
                    found.append(path.stat().st_size)
            return found

        with ProgressReporter(self._watcher, f"fetching {name}", total, lambda: max(sizes(), default=0)):
            self._ask({"verb": "fetch", "revision": self._commit, "path": name}, sizes)

    def _ask(self, question: dict[str, Any], sizes: Callable[[], list[int]] = list) -> dict[str, Any]:
        return with_retries(lambda: self._ask_once(question, sizes), _FIRST_WAIT_SEC, self._watcher.say)

    def _ask_once(self, question: dict[str, Any], sizes: Callable[[], list[int]]) -> dict[str, Any]:
        job = self._job
        common = {"model": job["model"], "endpoint": job["endpoint"], "folder": job["folder"], "token": self._token}
        asked = {**common, "home": str(Path.cwd() / "hub-home"), **question}
        client, self._client = self._client or self._started(), None
        try:
            with contextlib.suppress(BrokenPipeError):
                cast("IO[bytes]", client.stdin).write(json.dumps(asked).encode() + b"\n")
                cast("IO[bytes]", client.stdin).flush()
            self._await_answer(client, sizes)
            said = cast("IO[bytes]", client.stdout).readline(ANSWER_BYTES)
            if len(said) == ANSWER_BYTES:
                raise Failed("failed", f"the hub's client printed more than {ANSWER_BYTES >> 20} MiB; it was ended")
            if not said:
                raise Failed("failed", f"the hub's client ended with {client.wait()}; see the log")
            answer: dict[str, Any] = json.loads(said)
            if not answer["ok"]:
                raise Failed(answer["kind"], answer["message"])
        except BaseException:
            client.kill()
            client.wait()
            raise
        self._client = client
        return answer

    def _await_answer(self, client: subprocess.Popen[bytes], sizes: Callable[[], list[int]]) -> None:
        """Raises Failed where nothing comes for STALL_ENDS_SEC: the client waits for as long as the hub tells it to."""
        before, since = sizes(), time.monotonic()
        while not select.select([cast("IO[bytes]", client.stdout)], [], [], _SHOWN_EVERY_SEC)[0]:
            now = sizes()
            before, since = now, (since if now == before else time.monotonic())
            if time.monotonic() - since >= STALL_ENDS_SEC:
                where, took = self._job["endpoint"] or "the hub", f"{STALL_ENDS_SEC / 60:.0f} min"
                limited = "is it down, or does it limit how often this machine may ask (the log says so)?"
                raise Failed("transient", f"{where} has sent nothing for {took}; {limited}")

    def _started(self) -> subprocess.Popen[bytes]:
        endpoint = self._job["endpoint"]
        return subprocess.Popen(
            [self._python, str(Path(__file__).with_name("hub.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **({"HF_ENDPOINT": endpoint} if endpoint else {})},
        )


class Cache:
    """A Hugging Face cache on this machine: HF_HOME, its `hub`, or one model's folder in it."""

    def __init__(self, path: Path, model: str, revision: str | None) -> None:
        self._path, self._snapshot = path, snapshot_in(path, model, revision)

    def listed(self) -> tuple[str, list[Entry]]:
        return self._snapshot.name, files_of(self._snapshot, self._path)

    def fetch(self, entry: Entry, into: Path) -> None:
        part = into / f".{entry['path']}.part"
        part.unlink(missing_ok=True)
        source = inside(self._path, self._snapshot / entry["path"])
        # What was inside a moment ago is opened itself, not what it may have become a link to.
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file, part.open("xb") as copy:
            shutil.copyfileobj(file, copy, PIECE)
        part.replace(into / entry["path"])


def inside(cache: Path, path: Path) -> Path:
    """The file that `path` leads to, in `cache`. Raises Failed("refused") for one outside, or for no plain file."""
    real = path.resolve()
    if cache.resolve() not in real.parents:
        raise Failed("refused", f"{path}: leads out of the cache, to {real}; nothing of it was taken")
    if not real.is_file():
        raise Failed("refused", f"{path}: leads to {real}, which is no file")
    return real


def snapshot_in(path: Path, model: str, revision: str | None) -> Path:
    """The folder of one commit of `model` in a cache. Raises Failed("usage")."""
    name = "models--" + model.replace("/", "--")
    homes = [path / "hub" / name, path / name, path]
    home = next((home for home in homes if (home / "snapshots").is_dir()), None)
    if home is None or home.name != name:
        raise Failed("usage", f"{path}: holds no {name}/snapshots; name HF_HOME, the folder hub in it, or {name}")
    wanted = revision or "main"
    ref = home / "refs" / wanted
    commit = wanted
    if ref.is_file():
        with ref.open("rb") as file:
            commit = file.read(_REF_BYTES).decode(errors="replace").strip()
    here = sorted(folder.name for folder in (home / "snapshots").iterdir())
    if revision is None and commit not in here and len(here) == 1:
        commit = here[0]
    if commit not in here:
        raise Failed("usage", f"{home}: has no snapshot of {wanted}; it has {', '.join(here) or 'none'} (--revision)")
    return home / "snapshots" / commit


def files_of(snapshot: Path, cache: Path) -> list[Entry]:
    """A snapshot's files. Each is a link to a blob whose name is its digest, so a cache can be verified.

    Raises Failed("refused") for a link that leads out of `cache`.
    """
    entries = []
    for path in sorted(snapshot.iterdir()):
        if path.is_dir():
            continue
        real = inside(cache, path)
        blob = real.name
        entry: Entry = {"path": path.name, "size": real.stat().st_size, "sha256": None, "git_sha1": None}
        if path.is_symlink() and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob):
            entry["sha256" if len(blob) == 64 else "git_sha1"] = blob
        entries.append(entry)
    return entries


class UploadedSource:
    """Files that the laptop has sent, with the digests from its cache."""

    def __init__(self, folder: Path, revision: str, files: list[Entry]) -> None:
        self._folder, self._revision, self._files = folder, revision, files

    def listed(self) -> tuple[str, list[Entry]]:
        return self._revision, self._files

    def fetch(self, entry: Entry, into: Path) -> None:
        try:
            (self._folder / entry["path"]).replace(into / entry["path"])
        except FileNotFoundError:
            # The second request for it: what arrived whole had another digest than the cache says.
            message = f"{entry['path']}: its digest is not the one in the laptop's cache; name another source"
            raise Failed("refused", message) from None


class ProgressReporter:
    """A line every two seconds of long work: how far, how fast. `size_now` is for work that does not call `add`."""

    def __init__(self, watcher: Watcher, what: str, total: int, size_now: Callable[[], int] | None = None) -> None:
        self._watcher, self._what, self._total, self._size_now = watcher, what, total, size_now
        self._began, self._done, self._said = time.monotonic(), 0, 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> ProgressReporter:
        self._said = time.monotonic()
        if self._size_now is not None:
            self._first = self._size_now()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._size_now is not None:
            self._thread.join(10.0)

    def add(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._said >= _SHOWN_EVERY_SEC:
            self._said = time.monotonic()
            self._say(self._done, self._done)

    def _ask(self) -> None:
        assert self._size_now is not None  # noqa: S101 - for the type checker
        while not self._stopped.wait(_SHOWN_EVERY_SEC):
            now = self._size_now()
            self._say(now, now - self._first)

    def _say(self, done: int, moved: int) -> None:
        rate = moved / max(0.001, time.monotonic() - self._began)
        self._watcher.say(f"{self._what}: {done / 1e9:.2f} of {self._total / 1e9:.2f} GB, {rate / 1e6:.0f} MB/s")


# --- the client and the token -----------------------------------------------------------------------------------------


def hub_python(watcher: Watcher, index_url: str | None) -> str:
    """A Python with huggingface_hub: this one, or one in a virtual environment made beside the jobs, once."""
    if importlib.util.find_spec("huggingface_hub") is not None:
        return sys.executable
    home = Path.cwd().parent.parent / "hub-client"
    python, ready = home / "bin" / "python", home / "ready"
    if ready.exists():
        return str(python)
    watcher.say(f"installing {HUB_CLIENT} into {home}", "preparing")
    environment = {**os.environ, **({"PIP_INDEX_URL": index_url} if index_url else {})}
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", HUB_CLIENT],
    )
    for step in steps:
        done = subprocess.run(step, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit {done.returncode}"]
            raise Failed(
                "usage",
                f"huggingface_hub is not on the VM and cannot be installed ({lines[-1][:200]}); install python3-venv "
                "there and let it reach a package index (image.index_url), or bring the model from a cache (--cache, "
                "--cache-here)",
            )
    ready.touch()
    return str(python)


def token_from_pipe(pipe: Path) -> str:
    """The token that comes through a named pipe of this user; the pipe is deleted afterwards."""
    os.mkfifo(pipe, 0o600)
    handle, content, until = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), b"", time.monotonic() + _TOKEN_SEC
    try:
        while time.monotonic() < until and len(content) < _TOKEN_BYTES:
            try:
                piece = os.read(handle, 4096)
            except BlockingIOError:
                piece = None
            if piece:
                content += piece
            elif piece == b"" and content:
                return content.decode().strip()
            else:
                time.sleep(0.05)
    finally:
        os.close(handle)
        pipe.unlink()
    raise Failed("stopped", "no token arrived from the laptop")
