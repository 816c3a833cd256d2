"""Long work on the build VM as one detached job: start it or find the one that runs, follow it, return its outcome.

The job goes on without the laptop and without the link; the next command finds it by its slot. It follows the job if
that does the same work, which the digest of the whole request in the name of its folder tells. All verbs share one
slot, because two jobs would compete for the same disk and engine.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from remote.hosts.bundle import PYTHON_FLAGS, program
from remote.hosts.command import Command
from remote.hosts.host import CommandTimedOut, Host, HostError, HostUnreachable, check, parsed
from remote.hosts.local import me
from remote.jobs.agent import ONHOST, Agent
from remote.jobs.job import Job, JobSpec, JobState, JobStatus

WHO_FILE = "who"  # in a job's folder: who started it
_ONVM = "remote.image.vm_agent"
_SHOWN_EVERY_SEC = 1.0
_SILENT_FOR_SEC = 60.0
_QUIET_SEC = 10.0  # a line is due every second; a stream without one is opened again


class JobFailed(HostError):
    """The job failed. `kind` is as in `remote.image.vm_agent.job.Failed`, or lost; `log` is where its log is."""

    def __init__(self, kind: str, message: str, log: str | None = None) -> None:
        super().__init__(message if log is None else f"{message}; log: {log}")
        self.kind, self.message = kind, message


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A line of the job's log, its stage, and seconds since the job began."""

    text: str
    stage: str
    elapsed_sec: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The job's own facts, and how long it took."""

    facts: Mapping[str, Any]
    wall_time_sec: float


def agent_on(host: Host) -> Agent:
    """The agent of the build VM; its program holds the modules that jobs run there."""
    return Agent(host, program(ONHOST, _ONVM, f"{_ONVM}.registry"))


def slot(agent: Agent) -> str:
    return f"{agent.host.workdir}/vm.slot"


def running(agent: Agent) -> Job | None:
    """The job that holds the slot, whoever started it, or None."""
    folder = agent.holder(slot(agent))
    return None if folder is None else Job(agent, folder, slot=slot(agent))


def verb_of(job: Job) -> str:
    """What a job does: the first part of its folder's name."""
    return job.folder.rpartition("/")[2].partition("-")[0]


def new(agent: Agent, verb: str, name: str, request: Mapping[str, Any]) -> Job:
    """A new job, not started, that does `request`. `name` is for people."""
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", name)[:60]
    words = f"{plain}-{digest_of(request)}-{moment}-{time.time_ns() % 10**6:06d}"
    return Job(agent, f"{agent.host.workdir}/jobs/{verb}-{words}", slot=slot(agent))


def does(job: Job, verb: str, request: Mapping[str, Any]) -> bool:
    """Whether a job does this work and no other."""
    words = job.folder.rpartition("/")[2].split("-")
    return words[0] == verb and len(words) > 3 and words[-3] == digest_of(request)


def digest_of(request: Mapping[str, Any]) -> str:
    """Tells one work from another: the sha256 of its whole request, cut to what a folder's name can hold."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:32]


def starter(job: Job) -> str:
    """Who started a job, as `me` says it; empty where that is not known."""
    text = str(job.agent.line("tail", {"root": job.folder, "path": WHO_FILE, "size": 200})["text"])
    return " ".join(text.split())


def start(job: Job, document: Mapping[str, Any], *, deadline_sec: float) -> JobStatus:
    """Start `job`. Raises HostBusy if another one runs, and as `Agent`."""
    verb, agent = verb_of(job), job.agent
    agent.path(f"{_ONVM}.{verb}")  # KeyError for a verb that no module has
    command = Command(argv=(*agent.host.python, agent.path(f"{_ONVM}.__main__"), "job.json"))
    files = {"job.json": json.dumps({"verb": verb, **document}), WHO_FILE: me()}
    return job.start(JobSpec(command=command, deadline_sec=deadline_sec, files=files))


def ask(agent: Agent, question: Mapping[str, Any], *, timeout_sec: float) -> Mapping[str, Any]:
    """The answer of `remote.image.vm_agent.registry.main`, which is no job: it takes no slot and leaves nothing behind.

    The question may hold a secret, which goes over standard input. Raises as `Agent` and JobFailed.
    """
    agent.holder(slot(agent))  # so that our program is there
    command = Command(argv=(*agent.host.python, *PYTHON_FLAGS, agent.path(f"{_ONVM}.__main__"), "ask"))
    completed = agent.host.run(command, stdin=json.dumps(question).encode(), timeout_sec=timeout_sec)
    said = check(agent.host, command, completed).stdout
    answer: dict[str, Any] = parsed(agent.host, said, "the answer about the registry")
    if "kind" in answer:
        raise JobFailed(answer["kind"], answer["message"])
    return answer


def follow(job: Job, on_line: Callable[[JobLine], None], on_cut: Callable[[HostError], None]) -> Outcome:
    """Follow the job to its end over connections that may break; `on_cut` gets the error of each.

    Raises JobFailed and, after a minute of silence, the last HostUnreachable; the job goes on.
    """
    shown, heard = 0, time.monotonic()

    def hear(status: JobStatus) -> None:
        nonlocal shown, heard
        heard = time.monotonic()
        progress = status.progress or {}
        lines, count = progress.get("lines", []), progress.get("count", 0)
        missed = count - shown - len(lines)
        if missed > 0:
            note = f"... {missed} lines not shown; the log has them"
            on_line(JobLine(text=note, stage=progress["stage"], elapsed_sec=lines[0][0]))
        for elapsed_sec, text in lines[max(0, len(lines) - (count - shown)) :]:
            on_line(JobLine(text=text, stage=progress["stage"], elapsed_sec=elapsed_sec))
        shown = max(shown, count)

    while True:
        try:
            status = job.watch(hear, every_sec=_SHOWN_EVERY_SEC, silence_sec=_QUIET_SEC)
        except (HostUnreachable, CommandTimedOut) as error:
            if time.monotonic() - heard > _SILENT_FOR_SEC:
                raise
            on_cut(error)
            time.sleep(2.0)
            continue
        if status.state is JobState.RUNNING:
            continue
        return _outcome(job, status)


def _outcome(job: Job, status: JobStatus) -> Outcome:
    log = f"{job.agent.host.name}:{job.folder}/log.txt"
    if status.state is not JobState.ENDED:
        raise JobFailed("lost", f"the job is {status.state.value}: the VM or the job's supervisor was killed", log)
    text = job.agent.line("tail", {"root": job.folder, "path": "outcome.json", "size": 1 << 20})["text"]
    if not text:
        ended = {"deadline": "stopped at its deadline", "cancelled": "stopped by request"}.get(
            status.why or "", f"ended with exit code {status.exit_code}"
        )
        last = " ".join(job.log_tail()[-2:])
        raise JobFailed("stopped", f"the job {ended} and left no outcome: {last}", log)
    outcome = json.loads(text)
    if not outcome["ok"]:
        raise JobFailed(outcome["kind"], outcome["message"], log)
    return Outcome(facts=outcome, wall_time_sec=status.wall_time_sec or 0.0)
