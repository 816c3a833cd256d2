"""Supervisor process of a job: runs one command to its end and writes end.json."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time

from remote.agent.shared.files import read_bytes, write_atomic

RESERVE_FILE, RESERVE_BYTES = "end.reserve", 8192

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def detach_and_supervise(job: str, spec: dict[str, Any], slot: int | None, ready: int) -> NoReturn:
    """Detach the forked child, which has inherited the job's lock, from the caller, then supervise."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # an inherited pipe would keep the caller's connection open
            os.dup2(null, stream)
        signal.pthread_sigmask(signal.SIG_BLOCK, Supervisor.SIGNALS)
        supervisor = Supervisor(job, spec, slot)
        supervisor.start()
        os.close(ready)
        ready = -1
        supervisor.supervise()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last frame of a detached process
        message = f"supervisor: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(ready, message.encode())
        with contextlib.suppress(OSError), open(f"{job}/log.txt", "a") as log:
            log.write(message + "\n")
    finally:
        os._exit(code)


class Supervisor:
    """Supervisor of one command: deadline, cancellation, and cleanup of leftover processes."""

    SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

    def __init__(self, job: str, spec: dict[str, Any], slot: int | None) -> None:
        self.job, self.spec, self.slot = job, spec, slot
        self.started_at = time.monotonic()
        self.deadline = self.started_at + spec["deadline_sec"]
        self.kill_at: float | None = None
        self.end_reason = "exited"
        self.child = 0
        self.status: int | None = None

    def start(self) -> None:
        become_subreaper()
        write_atomic(f"{self.job}/supervisor.json", json.dumps({"pid": os.getpid()}).encode())
        # Given back for end.json if the disk is full by then. A disk that is full already must not prevent the start.
        with contextlib.suppress(OSError):
            write_atomic(f"{self.job}/{RESERVE_FILE}", os.urandom(RESERVE_BYTES))
        log = os.open(f"{self.job}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        executed, end = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            exec_command(self.spec, self.job, self.slot, log)
        for handle in (log, end):
            os.close(handle)
        os.read(executed, 1)  # returns after exec or its failure: from then on the command handles signals
        os.close(executed)

    def supervise(self) -> None:
        while self.status is None:
            now = time.monotonic()
            if self.kill_at is None and now >= self.deadline:
                # SIGTERM, not SIGINT: the command has missed its own deadline.
                self.stop("deadline", signal.SIGTERM)
            if self.kill_at is not None and now >= self.kill_at:
                self.signal_group(signal.SIGKILL)
            due = self.deadline if self.kill_at is None else self.kill_at
            received = signal.sigtimedwait(self.SIGNALS, max(0.05, due - now))
            if received is not None and received.si_signo != signal.SIGCHLD and self.kill_at is None:
                if os.path.exists(f"{self.job}/cancel"):
                    self.stop("cancelled", signal.SIGINT)
                else:
                    self.stop("terminated", signal.SIGTERM)
            self.reap()
        self.kill_leftovers()
        self.write_end(self.status)

    def stop(self, reason: str, number: int) -> None:
        self.end_reason, self.kill_at = reason, time.monotonic() + self.spec["grace_sec"]
        self.signal_group(number)

    def signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, number)

    def reap(self) -> bool:
        """Reap ended children; return True if any process of the command is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.child:
                    self.status = status
        except ChildProcessError:
            return False

    def kill_leftovers(self) -> None:
        """Kill leftover processes: the command's group, and those in other sessions (the ranks')."""
        deadline = time.monotonic() + 10.0
        while self.reap() and time.monotonic() < deadline:
            self.signal_group(signal.SIGKILL)
            for pid in children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def write_end(self, status: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        end = {
            "exit_code": os.WEXITSTATUS(status) if number is None else 128 + number,
            "signal": number,
            "why": self.end_reason,
            "wall_time_sec": round(time.monotonic() - self.started_at, 3),
        }
        deadline = time.monotonic() + 60.0
        while True:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.job}/{RESERVE_FILE}")
            try:
                write_atomic(f"{self.job}/end.json", json.dumps(end).encode())
                return
            except OSError:  # a full disk may be freed; without end.json the job counts as lost
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1.0)


def become_subreaper() -> None:
    """Make orphans of the command children of this process, which reaps and kills them."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def exec_command(spec: dict[str, Any], job: str, slot: int | None, log: int) -> NoReturn:
    """Execute the command in the forked child; it dies with the supervisor. Exit code 127 if it cannot be started."""
    subject = spec["folder"] or job
    try:
        os.setsid()
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, Supervisor.SIGNALS)
        for stream in (1, 2):
            os.dup2(log, stream)
        if slot is not None:
            os.set_inheritable(slot, True)
        os.chdir(subject)
        subject = spec["argv"][0]
        os.execvpe(subject, spec["argv"], {**os.environ, **spec["environment"]})  # noqa: S606 - no shell
    except BaseException as error:  # noqa: BLE001 - the last frame of this process
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        os.write(log, f"{subject}: cannot be started: {reason}\n".encode())
    finally:
        os._exit(127)


def children_of(parent: int) -> list[int]:
    children = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in the second field may have spaces and parentheses; fields are counted after the last one.
            fields = read_bytes(f"/proc/{int(name)}/stat").rpartition(b")")[2].split()
            if int(fields[1]) == parent:
                children.append(int(name))
    return children
