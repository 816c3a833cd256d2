"""Start, watching and cancelling of detached jobs, by any process that knows their folder.

A job is a folder. It is started once: the first caller claims the folder, and the holder of its lock starts a
supervisor. That outlives the connection, runs the command in its own session, enforces the deadline, and writes
`end.json` last. The folder's files:

- `lock`     flock held by the supervisor for as long as it lives, so a recycled pid cannot look like a live job;
- `end.json` exit code and reason of the end; its presence is the end marker.

A *slot* is a file locked by the supervisor and by everything it started: at most one job at a time holds it, also by an
orphan that survived its supervisor.

Not covered: a host that loses power between the command's last write and end.json; the job then shows as lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from remote.agent.shared.files import join_inside, read_bytes, read_json, sync_folder, write_atomic
from remote.agent.shared.wire import RequestRefused, print_line, read_exactly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIGINT, SIGTERM = 2, 15


def get_state(job: str) -> dict[str, Any]:
    """Return absent | waiting (claimed, not started) | running | ended | lost (its supervisor died without an end)."""
    if not os.path.isdir(job):
        return {"state": "absent"}
    # Read the end after the liveness test: a supervisor that ends in between has written it by then.
    supervised, alive = os.path.exists(f"{job}/supervisor.json"), is_alive(job)
    end = read_json(f"{job}/end.json")
    if end is not None:
        return {"state": "ended", **end}
    if not supervised:
        return {"state": "waiting"}
    return {"state": "running" if alive else "lost"}


def is_alive(job: str) -> bool:
    try:
        handle = os.open(f"{job}/lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(handle)
    finally:
        os.close(handle)


def start(arguments: dict[str, Any]) -> None:
    """Start the job unless it was started before; print its state."""
    spec = json.loads(read_exactly(arguments["stdin_bytes"]))
    job = arguments["job"]
    claim_folder(job, spec)
    lock = os.open(f"{job}/lock", os.O_RDWR | os.O_CREAT, 0o644)
    # A `watch` holds the lock for an instant, a supervisor permanently.
    if not try_lock(lock, timeout_sec=0.5) or is_started(job):
        os.close(lock)
        print_line({**get_state(job), "environment": read_environment(job, arguments.get("tell", []))})
        return
    slot = None
    if arguments["slot"] is not None:
        slot = os.open(arguments["slot"], os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(slot, timeout_sec=arguments["claim_sec"]):
            print_line({"state": "busy", "holder": os.read(slot, 4096).decode(errors="replace").strip()})
            return
        os.ftruncate(slot, 0)
        os.pwrite(slot, f"{job}\n".encode(), 0)
    if os.path.exists(f"{job}/cancel"):
        write_cancelled_end(job)
        print_line(get_state(job))
        return
    from remote.agent.jobs.supervisor import detach_and_supervise

    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        detach_and_supervise(job, json.loads(read_bytes(f"{job}/spec.json")), slot, ready_write)
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as ready:
        message = ready.read().decode(errors="replace")
    if message:
        raise RequestRefused(message)
    print_line({**get_state(job), "environment": read_environment(job, arguments.get("tell", [])), "started": True})


def read_environment(job: str, names: list[str]) -> dict[str, Any]:
    """Return variables of the job's stored spec, which may differ from this call's spec."""
    environment = json.loads(read_bytes(f"{job}/spec.json"))["environment"]
    return {name: environment.get(name) for name in names}


def is_started(job: str) -> bool:
    return os.path.exists(f"{job}/supervisor.json") or os.path.exists(f"{job}/end.json")


def claim_folder(job: str, spec: dict[str, Any]) -> None:
    """Create the job's folder with its spec and input files atomically."""
    if os.path.exists(job):
        return
    parent, name = os.path.split(job)
    os.makedirs(parent, exist_ok=True)
    temporary = os.path.join(parent, f".{name}.{os.urandom(8).hex()}")
    os.mkdir(temporary)
    try:
        for file_name, text in spec.pop("files", {}).items():
            with open(join_inside(temporary, file_name), "w", encoding="utf-8") as file:
                file.write(text)
        write_atomic(f"{temporary}/spec.json", json.dumps(spec).encode())
        os.rename(temporary, job)
    except BaseException:
        for leftover in os.listdir(temporary):
            os.unlink(f"{temporary}/{leftover}")
        os.rmdir(temporary)
        if not os.path.isdir(job):  # else another caller claimed it meanwhile: that claim counts
            raise
    sync_folder(parent)


def watch(arguments: dict[str, Any]) -> None:
    """Print the job's state and progress every `every_sec`, until it ends or `for_sec` has passed."""
    job, deadline = arguments["job"], time.monotonic() + arguments["for_sec"]
    progress_file = os.path.join(job, arguments["progress"])
    due = 0.0
    while True:
        now = time.monotonic()
        # Only `end.json` is checked each time: taking the lock that often would hinder a starter.
        if now >= due or os.path.exists(f"{job}/end.json"):
            state = get_state(job)
            print_line({**state, "progress": read_json(progress_file)})
            if state["state"] != "running" or now >= deadline:
                return
            due = min(now + arguments["every_sec"], deadline)
        time.sleep(0.05)


def cancel(arguments: dict[str, Any]) -> None:
    """Interrupt, then kill everything the job started; wait for its end and print it.

    A job that has not started ends at once, also if its starter still waits for the slot.
    """
    job, deadline, is_signalled = arguments["job"], time.monotonic() + arguments["grace_sec"] + 10.0, False
    while True:
        state = get_state(job)
        if state["state"] not in ("waiting", "running") or time.monotonic() >= deadline:
            print_line(state)
            return
        if not os.path.exists(f"{job}/cancel"):
            write_atomic(f"{job}/cancel", b"")
        supervisor = read_json(f"{job}/supervisor.json")
        if supervisor is None:
            lock = os.open(f"{job}/lock", os.O_RDWR | os.O_CREAT, 0o644)
            if try_lock(lock):
                write_cancelled_end(job)
            os.close(lock)
        elif not is_signalled:
            is_signalled = True
            try:  # noqa: SIM105 - contextlib costs 2 ms of every call
                os.kill(supervisor["pid"], SIGTERM)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def write_cancelled_end(job: str) -> None:
    """Write the end of a job that was cancelled before its start. The caller holds the job's lock."""
    if not os.path.exists(f"{job}/supervisor.json"):
        end = {"exit_code": 128 + SIGINT, "signal": None, "why": "cancelled", "wall_time_sec": 0.0}
        write_atomic(f"{job}/end.json", json.dumps(end).encode())


def holder(arguments: dict[str, Any]) -> None:
    """Print the job that holds the slot, or null."""
    job = None
    try:
        handle = os.open(arguments["slot"], os.O_RDWR)
        if not try_lock(handle, timeout_sec=0.2):
            job = os.read(handle, 4096).decode(errors="replace").strip()
    except FileNotFoundError:
        pass
    print_line({"holder": job})


def room(arguments: dict[str, Any]) -> None:
    """Write and remove as many bytes in `folder` as the start of a job needs; fails if the disk is full."""
    os.makedirs(arguments["folder"], exist_ok=True)
    probe = f"{arguments['folder']}/.room"
    write_atomic(probe, bytes(1 << 16))
    try:  # noqa: SIM105 - contextlib costs 2 ms of every call
        os.unlink(probe)
    except FileNotFoundError:  # removed by another call
        pass
    print_line({"room": True})


def tail(arguments: dict[str, Any]) -> None:
    """Print the last `size` bytes of a file as text; empty if it does not exist."""
    text = b""
    try:
        with open(join_inside(arguments["root"], arguments["path"]), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - arguments["size"]))
            text = file.read(arguments["size"])
    except FileNotFoundError:
        pass
    print_line({"text": text.decode(errors="replace")})


def try_lock(handle: int, timeout_sec: float = 0.0) -> bool:
    deadline = time.monotonic() + timeout_sec
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


VERBS = {verb.__name__: verb for verb in (start, watch, cancel, holder, room, tail)}
