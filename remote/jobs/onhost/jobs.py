"""Detached jobs: started once, watched and cancelled by whoever knows their folder.

A job is a folder. `start` claims it, starts a supervisor and returns. The supervisor outlives the connection, runs the
command in a session of its own, enforces the deadline, and writes `end.json` last. The folder's files:

- `lock`      flock held by the supervisor for as long as it lives, so a recycled pid cannot look like a live job;
- `heartbeat` the host's uptime in seconds, rewritten every `heartbeat_sec`; uptime, because a clock can be set back;
- `end.json`  how the command ended; its presence is the end marker.

A *slot* is a file locked by the supervisor and by everything it started: at most one job at a time holds it, and an
orphan that survived its supervisor still does.

Not covered: a host that loses power between the command's last write and end.json; the job then shows as lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path

from remote.jobs.onhost.basics import (
    Refusal,
    inside,
    read_exactly,
    read_json,
    say,
    sync_folder,
    uptime_sec,
    write_atomic,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start(arguments: dict[str, Any]) -> None:
    """Start the job unless it was started before; answer what it is now."""
    spec = json.loads(read_exactly(arguments["stdin_bytes"]))
    job = Path(arguments["job"])
    claim_folder(job, spec)
    lock = os.open(job / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    # A `watch` may hold the lock for an instant; a supervisor keeps it.
    if not try_lock(lock, within_sec=0.5) or has_begun(job):
        os.close(lock)
        say({**state_of(job), "environment": environment_of(job, arguments.get("tell", []))})
        return
    slot = None
    if arguments["slot"] is not None:
        slot = os.open(arguments["slot"], os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(slot, within_sec=arguments["claim_sec"]):
            say({"state": "busy", "holder": os.read(slot, 4096).decode(errors="replace").strip()})
            return
        os.ftruncate(slot, 0)
        os.pwrite(slot, f"{job}\n".encode(), 0)
    if (job / "cancel").exists():
        end_unbegun(job)
        say(state_of(job))
        return
    from remote.jobs.onhost.supervisor import detach_and_supervise

    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        detach_and_supervise(job, json.loads((job / "spec.json").read_bytes()), slot, ready_write)
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as ready:
        complaint = ready.read().decode(errors="replace")
    if complaint:
        raise Refusal(complaint)
    say({**state_of(job), "environment": environment_of(job, arguments.get("tell", [])), "started": True})


def environment_of(job: Path, names: list[str]) -> dict[str, Any]:
    """These variables as the job's own spec has them: it may have been claimed with another spec than this call's."""
    found = json.loads((job / "spec.json").read_bytes())["environment"]
    return {name: found.get(name) for name in names}


def has_begun(job: Path) -> bool:
    return (job / "supervisor.json").exists() or (job / "end.json").exists()


def claim_folder(job: Path, spec: dict[str, Any]) -> None:
    """Make the job's folder with its spec and input files in one step: it is whole or absent."""
    if job.exists():
        return
    import tempfile

    job.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=job.parent, prefix=f".{job.name}.") as temporary:
        made = Path(temporary, "job")
        made.mkdir()
        for name, text in spec.pop("files", {}).items():
            inside(str(made), name).write_text(text, encoding="utf-8")
        write_atomic(made / "spec.json", json.dumps(spec).encode())
        with contextlib.suppress(OSError):  # another caller claimed it meanwhile: theirs stands
            os.rename(made, job)
    sync_folder(job.parent)
    if not job.exists():
        raise Refusal(f"{job} could not be made")


def state_of(job: Path) -> dict[str, Any]:
    """absent | waiting (claimed, never started) | running | ended | lost (its supervisor died without an end)."""
    if not job.is_dir():
        return {"state": "absent"}
    # Read the end after testing liveness: a supervisor that ends in between has written it by then.
    supervised, alive = (job / "supervisor.json").exists(), is_alive(job)
    end = read_json(job / "end.json")
    if end is not None:
        return {"state": "ended", **end}
    if not supervised:
        return {"state": "waiting"}
    if alive:
        return {"state": "running", "heartbeat_age_sec": heartbeat_age_sec(job)}
    return {"state": "lost"}


def is_alive(job: Path) -> bool:
    try:
        handle = os.open(job / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(handle)
    finally:
        os.close(handle)


def heartbeat_age_sec(job: Path) -> float | None:
    try:
        return max(0.0, uptime_sec() - float((job / "heartbeat").read_text()))
    except (FileNotFoundError, ValueError):
        return None


def watch(arguments: dict[str, Any]) -> None:
    """A line every `every_sec` with the job's state and progress; the last line is its end, or comes at `for_sec`."""
    job, until = Path(arguments["job"]), time.monotonic() + arguments["for_sec"]
    progress_file = job / arguments["progress"]
    due = 0.0
    while True:
        now = time.monotonic()
        # Only `end.json` is checked each time: taking the lock ten times a second would hinder a starter.
        if now >= due or (job / "end.json").exists():
            state = state_of(job)
            say({**state, "progress": read_json(progress_file)})
            if state["state"] != "running" or now >= until:
                return
            due = min(now + arguments["every_sec"], until)
        time.sleep(0.05)


def cancel(arguments: dict[str, Any]) -> None:
    """Interrupt, then kill everything the job started; wait for its end and answer it.

    A job that has not begun ends at once, also one whose starter still waits for the slot.
    """
    job, deadline, signalled = Path(arguments["job"]), time.monotonic() + arguments["grace_sec"] + 10.0, False
    while True:
        state = state_of(job)
        if state["state"] not in ("waiting", "running") or time.monotonic() >= deadline:
            say(state)
            return
        if not (job / "cancel").exists():
            write_atomic(job / "cancel", b"")
        supervisor = read_json(job / "supervisor.json")
        if supervisor is None:
            lock = os.open(job / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            if try_lock(lock):
                end_unbegun(job)
            os.close(lock)
        elif not signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor["pid"], signal.SIGTERM)
            signalled = True
        time.sleep(0.05)


def end_unbegun(job: Path) -> None:
    """The end of a job that was cancelled before it began; whoever holds its lock may write it."""
    if not (job / "supervisor.json").exists():
        end = {"exit_code": 128 + signal.SIGINT, "signal": None, "why": "cancelled", "wall_time_sec": 0.0}
        write_atomic(job / "end.json", json.dumps(end).encode())


def holder(arguments: dict[str, Any]) -> None:
    """Which job holds the slot, if any."""
    job = None
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(arguments["slot"], os.O_RDWR)
        if not try_lock(handle, within_sec=0.2):
            job = os.read(handle, 4096).decode(errors="replace").strip()
    say({"holder": job})


def room(arguments: dict[str, Any]) -> None:
    """Write as much into `folder` as the start of a job takes, and remove it: a host whose disk is full refuses."""
    folder = Path(arguments["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    tried = folder / ".room"
    write_atomic(tried, bytes(1 << 16))
    tried.unlink(missing_ok=True)
    say({"room": True})


def tail(arguments: dict[str, Any]) -> None:
    """The last `size` bytes of a file, as text; empty where there is none."""
    text = b""
    with contextlib.suppress(FileNotFoundError), inside(arguments["root"], arguments["path"]).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - arguments["size"]))
        text = file.read(arguments["size"])
    say({"text": text.decode(errors="replace")})


def try_lock(handle: int, within_sec: float = 0.0) -> bool:
    deadline = time.monotonic() + within_sec
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


VERBS = {verb.__name__: verb for verb in (start, watch, cancel, holder, room, tail)}
