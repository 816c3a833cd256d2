"""Start of a detached job, once: the first caller claims the folder, and the holder of its lock starts a supervisor."""

from __future__ import annotations

import json
import os

from remote.agent.jobs.jobs import get_state, try_lock, write_cancelled_end
from remote.agent.shared.disk import join_inside, read_bytes, sync_folder, write_atomic
from remote.agent.shared.wire import RequestRefused, print_line, read_exactly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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


VERBS = {"start": start}
