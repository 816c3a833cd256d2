"""Detached jobs on any host: work that goes on without the connection and without the operator's laptop.

A job is a folder on the host (see `remote.jobs.host_agent`). Whoever knows the folder can follow and cancel the job.
Completion is a file written last with the exit code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from remote.hosts.command import Command
from remote.hosts.host import Host, HostError, HostUnreachable
from remote.jobs.agent import Agent

LOG_FILE = "log.txt"
CLAIM_SEC = 10.0  # a job that has just ended keeps its slot for some milliseconds


class JobState(Enum):
    """What a job is now. LOST: its supervisor died without writing an end."""

    ABSENT = "absent"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class HostBusy(HostError):
    """Another job holds the slot; `holder` is its folder on the host."""

    def __init__(self, host: str, holder: str) -> None:
        super().__init__(f"{host}: busy with {holder}")
        self.holder = holder


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What to run, and its limits. `files` (name to text) are written into the job's folder before it starts.

    After `deadline_sec` the whole process group is asked to end; after `grace_sec` more it is killed.
    """

    command: Command
    deadline_sec: float
    grace_sec: float = 25.0
    heartbeat_sec: float = 2.0
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.command.secrets:
            raise ValueError("a job's command is written to disk; it cannot carry secrets")


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A look at a job. The fields after `heartbeat_age_sec` are set once it has ended.

    `why` is exited, deadline, cancelled (by `Job.cancel`) or terminated (a SIGTERM from the host itself).
    """

    state: JobState
    progress: dict[str, Any] | None = None
    heartbeat_age_sec: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None
    wall_time_sec: float | None = None


class Job:
    """A job at `folder` (absolute) on the agent's host. `slot` is a lock file that at most one running job holds."""

    def __init__(self, agent: Agent, folder: str, *, slot: str | None = None) -> None:
        self.agent, self.folder, self.slot = agent, folder, slot

    def start(self, spec: JobSpec) -> JobStatus:
        """Start the job unless it was started before; return what it is now. Raises HostBusy and as `Agent`."""
        answer = self.agent.start(
            self.folder,
            {
                "argv": list(spec.command.argv),
                "environment": dict(spec.command.environment),
                "folder": spec.command.folder,
                "deadline_sec": spec.deadline_sec,
                "grace_sec": spec.grace_sec,
                "heartbeat_sec": spec.heartbeat_sec,
                "files": dict(spec.files),
            },
            slot=self.slot,
            claim_sec=CLAIM_SEC,
        )
        if answer["state"] == "busy":
            raise HostBusy(self.agent.host.name, answer["holder"])
        return _status(answer)

    def status(self) -> JobStatus:
        return self.watch(lambda _: None, for_sec=0.0)

    def watch(
        self,
        on_status: Callable[[JobStatus], None],
        *,
        progress: str = "progress.json",
        every_sec: float = 1.0,
        for_sec: float = 300.0,
        silence_sec: float = 20.0,
    ) -> JobStatus:
        """Follow the job over one stream until it ends or `for_sec` has passed; return the last status.

        `progress` is a JSON file below the job's folder whose content comes with each status. Raises HostUnreachable
        or CommandTimedOut when the stream breaks or is silent; the job goes on, watch again. An exception from
        `on_status` ends the watching and is raised.
        """
        last: JobStatus | None = None

        def hear(line: dict[str, Any]) -> None:
            nonlocal last
            last = _status(line)
            on_status(last)

        self.agent.lines(
            "watch",
            {"job": self.folder, "progress": progress, "every_sec": every_sec, "for_sec": for_sec},
            on_line=hear,
            timeout_sec=for_sec + silence_sec,
            idle_timeout_sec=every_sec + silence_sec,
        )
        if last is None:  # a transport that loses a stream may still report success
            raise HostUnreachable(f"{self.agent.host.name}: no answer about {self.folder}")
        return last

    def cancel(self, *, grace_sec: float = 25.0) -> JobStatus:
        """Interrupt the job; what is left after its spec's grace is killed. `grace_sec` bounds the wait for its end."""
        return _status(self.agent.cancel(self.folder, grace_sec=grace_sec))

    def log_tail(self) -> list[str]:
        """The last lines of what the command printed, at most 4096 bytes of it."""
        answer = self.agent.line("tail", {"root": self.folder, "path": LOG_FILE, "size": 4096})
        return str(answer["text"]).splitlines()


def slot_of(host: Host) -> str:
    """The lock file that keeps a host to one trial at a time."""
    return f"{host.workdir}/slot"


def _status(line: Mapping[str, Any]) -> JobStatus:
    known: dict[str, Any] = {each.name: line.get(each.name) for each in fields(JobStatus)}
    progress = known["progress"] if isinstance(known["progress"], dict) else None
    return JobStatus(**{**known, "state": JobState(line["state"]), "progress": progress})
