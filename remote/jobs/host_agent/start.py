"""Detached jobs are started once: the first caller claims the folder, and whoever gets its lock starts a supervisor."""

from __future__ import annotations

import json
import os

from remote.jobs.host_agent.jobs import end_unbegun, state_of, try_lock
from remote.jobs.host_agent.util import Refusal, inside, read_bytes, read_exactly, say, sync_folder, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start(arguments: dict[str, Any]) -> None:
    """Start the job unless it was started before; answer what it is now."""
    spec = json.loads(read_exactly(arguments["stdin_bytes"]))
    job = arguments["job"]
    claim_folder(job, spec)
    lock = os.open(f"{job}/lock", os.O_RDWR | os.O_CREAT, 0o644)
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
    if os.path.exists(f"{job}/cancel"):
        end_unbegun(job)
        say(state_of(job))
        return
    from remote.jobs.host_agent.supervisor import detach_and_supervise

    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        detach_and_supervise(job, json.loads(read_bytes(f"{job}/spec.json")), slot, ready_write)
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as ready:
        complaint = ready.read().decode(errors="replace")
    if complaint:
        raise Refusal(complaint)
    say({**state_of(job), "environment": environment_of(job, arguments.get("tell", [])), "started": True})


def environment_of(job: str, names: list[str]) -> dict[str, Any]:
    """These variables as the job's own spec has them: it may have been claimed with another spec than this call's."""
    found = json.loads(read_bytes(f"{job}/spec.json"))["environment"]
    return {name: found.get(name) for name in names}


def has_begun(job: str) -> bool:
    return os.path.exists(f"{job}/supervisor.json") or os.path.exists(f"{job}/end.json")


def claim_folder(job: str, spec: dict[str, Any]) -> None:
    """Make the job's folder with its spec and input files in one step: it is whole or absent."""
    if os.path.exists(job):
        return
    parent, name = os.path.split(job)
    os.makedirs(parent, exist_ok=True)
    made = os.path.join(parent, f".{name}.{os.urandom(8).hex()}")
    os.mkdir(made)
    try:
        for file_name, text in spec.pop("files", {}).items():
            with open(inside(made, file_name), "w", encoding="utf-8") as file:
                file.write(text)
        write_atomic(f"{made}/spec.json", json.dumps(spec).encode())
        os.rename(made, job)
    except BaseException:
        for left in os.listdir(made):
            os.unlink(f"{made}/{left}")
        os.rmdir(made)
        if not os.path.isdir(job):  # else another caller claimed it meanwhile: theirs stands
            raise
    sync_folder(parent)


VERBS = {"start": start}
