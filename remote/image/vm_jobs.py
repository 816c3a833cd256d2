"""Long work on the build VM as one detached job: start it or find the running one, follow it, return its outcome.

The job continues without the laptop and without a connection. The next command finds it by its slot, and follows it if
the digest of the whole request, which is in the name of the job's folder, is the same. All verbs share one slot,
because two jobs would compete for the same disk and engine.

Facts about the build VM, read in one round trip: processor, Python, clock. For its disks see `engine`.
"""

import hashlib
import json
import logging
import posixpath
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.records.status import Failure, join_remedy
from remote.agent.shared.model_files import TOKEN_PIPE
from remote.agent.shared.secure_dir import EXIT_FOREIGN_OWNER
from remote.hosts.bundle import PYTHON_FLAGS, inline_command, load_program
from remote.hosts.command import Command, Secret
from remote.hosts.host_protocol import CommandTimedOut, Host, HostError, HostUnreachable, check, parse_json, read_json
from remote.hosts.local import current_user
from remote.jobs.job import HOST_AGENT, Agent, Job, JobSpec, JobState, JobStatus

FOLDER_NAME = "qlora-fleet"
_CLAIM_TIMEOUT_SEC = 60.0
_QUERY_TIMEOUT_SEC = 15.0
_SEND_SECRET_TIMEOUT_SEC = 90.0


class WorkdirUnsafe(HostError):
    """Error raised if another user owns the work directory or may write to it; the message has owner and path."""


class WorkdirError(HostError):
    """Error raised if the work directory cannot be created."""


def workdir_path(tmpdir: str) -> str:
    return posixpath.join(tmpdir, FOLDER_NAME)


def claim(host: Host, folder: str, *, create: bool = True) -> None:
    """Check that only this user may change the folder, and `create` it if missing.

    Without `create` a missing folder is not an error. Raises WorkdirUnsafe, WorkdirError and like `Host.run`.
    """
    command = inline_command(host, "remote.agent.shared.secure_dir", folder, "make" if create else "look")
    completed = host.run(command, timeout_sec=_CLAIM_TIMEOUT_SEC)
    if completed.exit_code != 0:
        complaint = command.tail(completed.stderr.decode(errors="replace"), lines=1)
        problem = f"{host.name}: {complaint or f'{folder}: exit {completed.exit_code}'}"
        if completed.exit_code == EXIT_FOREIGN_OWNER:
            raise WorkdirUnsafe(problem)
        raise WorkdirError(problem, remedy=f"make it possible there to create {folder}, or use another user or folder")


MIN_PYTHON = (3, 9)
REQUIRED_MACHINE = "x86_64"  # the GPU nodes' processor; they cannot start an image built on another one
_TIMEOUT_SEC = 60.0
_FACTS = "import json, platform, sys, time; print(json.dumps([platform.machine(), sys.version_info[:3], time.time()]))"


@dataclass(frozen=True, kw_only=True)
class VmFacts:
    """Facts about the VM. `machine` is the processor as in `uname -m`, `clock` the VM's Unix time."""

    machine: str
    python: tuple[int, int, int]
    clock: float

    def problems(self) -> tuple[Failure, ...]:
        """List the reasons why this VM cannot build or fetch, each with its remedy."""
        problems = []
        if self.python[:2] < MIN_PYTHON:
            version = ".".join(map(str, self.python))
            problems.append(
                Failure(f"its python3 is {version}, 3.9 or newer is required", remedy="install a newer one as python3")
            )
        if self.machine != REQUIRED_MACHINE:
            problem = f"its processor is {self.machine}, but the GPU nodes only start images for {REQUIRED_MACHINE}"
            problems.append(Failure(problem, remedy="set build.host to another VM"))
        return tuple(problems)


def observe(host: Host) -> VmFacts:
    """Query the VM. Raises HostUnreachable, CommandFailed."""

    def to_facts(fields: list[Any]) -> VmFacts:
        return VmFacts(machine=fields[0], python=tuple(fields[1]), clock=fields[2])

    command = Command(argv=(*host.python, *PYTHON_FLAGS, "-c", _FACTS))
    return read_json(host, command, "the facts about it", to_facts, timeout_sec=_TIMEOUT_SEC)


_logger = logging.getLogger(__name__)

STARTED_BY_FILE = "who"  # in a job's folder
_VM_AGENT = "remote.agent.build_vm"
_PROGRESS_INTERVAL_SEC = 1.0
_MAX_SILENCE_SEC = 60.0
_MAX_START_SEC = 30.0
_RECONNECT_AFTER_SEC = 10.0  # without a report; the job reports every second


class JobFailed(HostError):
    """Error raised if the job failed. `kind` is as in `VmAgentError`, or lost; `log` is its log's path."""

    def __init__(self, kind: str, problem: str, log: str | None = None, *, remedy: str = "") -> None:
        super().__init__(problem, remedy=join_remedy(remedy, None if log is None else f"log: {log}"))
        self.kind, self.own_remedy = kind, remedy


@dataclass(frozen=True, kw_only=True)
class VmWork:
    """Work for the VM as one job of `verb`. Commands with equal requests share a job.

    `name` makes the job's folder readable. `command` follows the job again, and `logs` is this machine's folder for its
    log.
    """

    verb: str
    name: str
    request: Mapping[str, Any]
    command: str
    deadline_sec: float
    logs: Path

    def new_job(self, agent: Agent) -> Job:
        """Return a job for this work, not started."""
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", self.name)[:60]
        job_id = f"{plain}-{self.digest}-{moment}-{secrets.token_hex(3)}"
        return Job(agent, f"{agent.host.workdir}/jobs/{self.verb}-{job_id}", slot=slot_path(agent))

    def is_done_by(self, job: Job) -> bool:
        """Return True if a job does exactly this work."""
        parts = job.folder.rpartition("/")[2].split("-")
        return parts[0] == self.verb and len(parts) > 3 and parts[-3] == self.digest

    def log_path(self, job_folder: str) -> Path:
        return self.logs / f"{job_folder.rpartition('/')[2]}.txt"

    @property
    def digest(self) -> str:
        """The first 32 hex digits of the request's sha256, which identify the work in a folder's name."""
        return hashlib.sha256(json.dumps(self.request, sort_keys=True, default=str).encode()).hexdigest()[:32]

    def start(self, job: Job, secret: Secret | None = None) -> None:
        """Start `job`, then send it its secret, which is not in its document.

        Raises HostBusy if another one runs, and like `Agent`.
        """
        host, agent = job.agent.host, job.agent
        agent.path(f"{_VM_AGENT}.{self.verb}")  # KeyError for a verb without a module
        command = Command(argv=(*host.python, "-X", "utf8", agent.path(f"{_VM_AGENT}.__main__"), "job.json"))
        files = {"job.json": json.dumps({"verb": self.verb, **self.request}), STARTED_BY_FILE: current_user()}
        _logger.info("%s: %s starts as job %s", host.name, self.verb, job.folder)
        job.start(JobSpec(command=command, deadline_sec=self.deadline_sec, files=files))
        if secret is not None:
            send = inline_command(
                host, "remote.agent.scripts.send_token", f"{job.folder}/{TOKEN_PIPE}", secrets=(secret,)
            )
            check(host, send, host.run(send, stdin=secret.reveal().encode(), timeout_sec=_SEND_SECRET_TIMEOUT_SEC))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The facts that the job in the folder `job` reported, and its duration."""

    job: str
    facts: Mapping[str, Any]
    wall_time_sec: float


def create_agent(host: Host) -> Agent:
    """Create the agent of the build VM; its program contains the modules that jobs run there."""
    return Agent(host, load_program(HOST_AGENT, _VM_AGENT, "remote.agent.shared"))


def slot_path(agent: Agent) -> str:
    return f"{agent.host.workdir}/vm.slot"


def running_job(agent: Agent) -> Job | None:
    """Return the job that holds the slot, of any user, or None. First checks the folder that has our programs.

    Raises like `claim`.
    """
    claim(agent.host, agent.host.workdir)
    folder = agent.holder(slot_path(agent))
    return None if folder is None else Job(agent, folder, slot=slot_path(agent))


def verb_of(job: Job) -> str:
    """Return a job's verb: the first part of its folder's name."""
    return job.folder.rpartition("/")[2].partition("-")[0]


def started_by(job: Job) -> str:
    """Return the user who started a job, in the form of `me`; empty if unknown."""
    return " ".join(job.agent.tail(job.folder, STARTED_BY_FILE, 200).split())


def query_registry(agent: Agent, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run `remote.agent.build_vm.__main__` on the VM, without a job, a slot or files.

    The request may contain a secret, which goes over standard input. Raises JobFailed, and like `Agent`.
    """
    running_job(agent)  # installs our program
    command = Command(argv=(*agent.host.python, *PYTHON_FLAGS, agent.path(f"{_VM_AGENT}.__main__"), "ask"))
    completed = agent.host.run(command, stdin=json.dumps(request).encode(), timeout_sec=_QUERY_TIMEOUT_SEC)
    output = check(agent.host, command, completed).stdout
    label = "the output of the registry query"
    return parse_json(agent.host, output, label, lambda answer: _to_facts({"ok": "kind" not in answer, **answer}))


def _to_facts(document: Mapping[str, Any], log: str | None = None) -> Mapping[str, Any]:
    """Return what a program on the VM reported. Raises JobFailed if it is a failure."""
    if document["ok"] is not True:
        kind, problem = str(document["kind"]), str(document["message"])
        raise JobFailed(kind, problem, log, remedy=str(document.get("remedy") or ""))
    return document


def follow(
    job: Job,
    on_line: Callable[[float, str, str], object],
    on_disconnect: Callable[[HostError], None],
    on_state: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Follow the job to its end over connections that may break; `on_disconnect` gets the error of each.

    `on_line` gets each line of the job's log: seconds since the job's start, stage and text. `on_state` gets the state
    of the present step, such as the bytes of a file so far, else the last line.

    Raises JobFailed and, after a minute of silence, the last HostUnreachable; the job continues.
    """
    line_count, last_status_at, started_at = 0, time.monotonic(), time.monotonic()

    def on_status(status: JobStatus) -> None:
        nonlocal line_count, last_status_at
        last_status_at = time.monotonic()
        progress = status.progress or {}
        try:
            count = int(progress.get("count", 0))
            lines = [(float(at), str(stage), str(text)) for at, stage, text in progress["lines"]]
        except (LookupError, TypeError, ValueError, OverflowError) as error:  # none yet, or not written by our job
            _logger.debug("%s: no progress: %s", job.folder, error)
            return
        skipped = count - line_count - len(lines)
        if skipped > 0 and lines:
            on_line(*lines[0][:2], f"... {skipped} lines skipped; they are in the log")
        for line in lines[max(0, len(lines) - (count - line_count)) :]:
            on_line(*line)
        line_count = max(line_count, count)
        if lines:
            on_state(str(progress.get("state") or lines[-1][2]))

    while True:
        try:
            status = job.watch(on_status, interval_sec=_PROGRESS_INTERVAL_SEC, silence_sec=_RECONNECT_AFTER_SEC)
        except (HostUnreachable, CommandTimedOut) as error:
            if time.monotonic() - last_status_at > _MAX_SILENCE_SEC:
                raise
            _logger.warning("%s: connection lost", job.agent.host.name, exc_info=error)
            on_disconnect(error)
            time.sleep(2.0)
            continue
        if status.state is JobState.WAITING and time.monotonic() - started_at < _MAX_START_SEC:
            time.sleep(0.2)  # another command has just made its folder, and starts it
        elif status.state is not JobState.RUNNING:
            return _outcome(job, status)


def _outcome(job: Job, status: JobStatus) -> Outcome:
    log = f"{job.agent.host.name}:{job.folder}/log.txt"
    if status.state is not JobState.ENDED:
        raise JobFailed("lost", f"the job is {status.state.value}: the VM or the job's supervisor was killed", log)
    text = job.agent.tail(job.folder, "outcome.json", 1 << 20)
    end = {"deadline": "was stopped at its deadline", "cancelled": "was cancelled"}.get(
        status.why or "", f"ended with exit code {status.exit_code}"
    )
    if not text:
        last = " ".join(job.log_tail()[-2:])
        raise JobFailed("stopped", f"the job {end} and wrote no outcome: {last}", log)
    try:
        facts = parse_json(job.agent.host, text, "the outcome of its job", partial(_to_facts, log=log))
    except JobFailed as failure:
        if failure.kind != "stopped":
            raise
        raise JobFailed("stopped", f"the job {end}", log) from failure
    _logger.info("%s: job %s: ok", job.agent.host.name, job.folder)
    return Outcome(job=job.folder, facts=facts, wall_time_sec=status.wall_time_sec or 0.0)
