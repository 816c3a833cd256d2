"""Detached jobs on any host, which continue without the connection and the operator's laptop.

A job is a folder on the host (see `remote.agent.jobs`), by which any process can follow and cancel it. Its end is
a file with the exit code, written last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from remote.hosts.base import Host, HostError, HostUnreachable
from remote.hosts.command import Command
from remote.jobs.agent import Agent

LOG_FILE = "log.txt"


class JobState(Enum):
    """State of a job. LOST: its supervisor died without writing an end."""

    ABSENT = "absent"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


_STATES = frozenset(state.value for state in JobState)
_STATUS_TYPES: Mapping[str, Any] = {
    "heartbeat_age_sec": float | int | None,
    "exit_code": int | None,
    "signal": int | None,
    "why": str | None,
    "wall_time_sec": float | int | None,
}


class HostBusy(HostError):
    """Slot held by another job; `holder` is its folder on the host."""

    def __init__(self, host: str, holder: str) -> None:
        super().__init__(f"{host}: busy with {holder}")
        self.holder = holder


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Command of a job, and its limits. `files` (name to text) are written into the job's folder before the start.

    The process group gets SIGTERM after `deadline_sec`, and SIGKILL `grace_sec` later.
    """

    command: Command
    deadline_sec: float
    grace_sec: float = 25.0
    heartbeat_sec: float = 2.0
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.command.secrets:
            raise ValueError("a job's command is written to disk, it must not have secrets")


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Observed state of a job. The fields after `heartbeat_age_sec` are set once it has ended.

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
    """A job in the absolute `folder` on the agent's host. `slot`: lock file that at most one running job holds."""

    def __init__(self, agent: Agent, folder: str, *, slot: str | None = None) -> None:
        self.agent, self.folder, self.slot = agent, folder, slot

    def start(self, spec: JobSpec) -> JobStatus:
        """Start the job unless it was started before; return its status. Raises HostBusy, and like `Agent`."""
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
        )
        if answer["state"] == "busy":
            raise HostBusy(self.agent.host.name, self.agent.field(answer, "holder", str))
        return self._parse_status(answer)

    def status(self) -> JobStatus:
        return self.watch(lambda _: None, duration_sec=0.0)

    def watch(
        self,
        on_status: Callable[[JobStatus], None],
        *,
        progress: str = "progress.json",
        interval_sec: float = 1.0,
        duration_sec: float = 300.0,
        silence_sec: float = 20.0,
    ) -> JobStatus:
        """Follow the job over one stream until it ends or `duration_sec` has passed; return the last status.

        `progress` is a JSON file in the job's folder; each status has its content. Raises HostUnreachable or
        CommandTimedOut if the stream breaks or is silent; the job continues, so the caller may retry. An exception
        from `on_status` ends the call and is raised.
        """
        last: JobStatus | None = None

        def on_line(line: dict[str, Any]) -> None:
            nonlocal last
            last = self._parse_status(line)
            on_status(last)

        self.agent.call_lines(
            "watch",
            {"job": self.folder, "progress": progress, "every_sec": interval_sec, "for_sec": duration_sec},
            on_line=on_line,
            timeout_sec=duration_sec + silence_sec,
            idle_timeout_sec=interval_sec + silence_sec,
        )
        if last is None:  # a transport that loses a stream may report success
            raise HostUnreachable(f"{self.agent.host.name}: no answer about {self.folder}")
        return last

    def cancel(self, *, grace_sec: float = 25.0) -> JobStatus:
        """Interrupt the job, which is killed after its spec's grace. `grace_sec` limits the wait for its end."""
        return self._parse_status(self.agent.cancel(self.folder, grace_sec=grace_sec))

    def log_tail(self) -> list[str]:
        """Fetch the last lines of the command's output, at most 4096 bytes."""
        return self.agent.tail(self.folder, LOG_FILE, 4096).splitlines()

    def _parse_status(self, line: Mapping[str, Any]) -> JobStatus:
        """Check an answer, which the host may have made up. Raises HostUnreachable."""
        state = self.agent.field(line, "state", str)
        if state not in _STATES:
            raise HostUnreachable(f"{self.agent.host.name}: unknown state {state[:40]!r} of {self.folder}")
        values = {name: self.agent.field({name: None, **line}, name, kind) for name, kind in _STATUS_TYPES.items()}
        progress = line.get("progress")
        return JobStatus(state=JobState(state), progress=progress if isinstance(progress, dict) else None, **values)


def slot_path(host: Host) -> str:
    """Return the lock file that limits a host to one trial at a time."""
    return f"{host.workdir}/slot"
