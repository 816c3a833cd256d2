"""The process that stays with a job: runs one command to its end and writes how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time

from remote.jobs.host_agent.util import read_bytes, uptime_sec, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def detach_and_supervise(job: str, spec: dict[str, Any], slot: int | None, ready: int) -> NoReturn:
    """In the forked child, which has inherited the job's lock: cut every tie to the caller, then supervise."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # an inherited pipe left open would keep the caller's connection waiting
            os.dup2(null, stream)
        signal.pthread_sigmask(signal.SIG_BLOCK, Supervisor.SIGNALS)
        supervisor = Supervisor(job, spec, slot)
        supervisor.begin()
        os.close(ready)
        ready = -1
        supervisor.attend()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last frame of a detached process
        complaint = f"supervisor: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(ready, complaint.encode())
        with contextlib.suppress(OSError), open(f"{job}/log.txt", "a") as log:
            log.write(complaint + "\n")
    finally:
        os._exit(code)


class Supervisor:
    """Runs one command to its end: heartbeat, deadline, cancellation, and nothing left running behind it."""

    SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

    def __init__(self, job: str, spec: dict[str, Any], slot: int | None) -> None:
        self.job, self.spec, self.slot = job, spec, slot
        self.began = time.monotonic()
        self.deadline = self.began + spec["deadline_sec"]
        self.kill_at: float | None = None
        self.why = "exited"
        self.child = 0
        self.status: int | None = None

    def begin(self) -> None:
        become_subreaper()
        write_atomic(f"{self.job}/supervisor.json", json.dumps({"pid": os.getpid()}).encode())
        self.beat()
        log = os.open(f"{self.job}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        executed, end = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            become(self.spec, self.job, self.slot, log)
        for handle in (log, end):
            os.close(handle)
        os.read(executed, 1)  # returns when the command is executed, or cannot be: from then on it takes signals
        os.close(executed)

    def attend(self) -> None:
        while self.status is None:
            self.beat()
            now = time.monotonic()
            if self.kill_at is None and now >= self.deadline:
                # The command had a deadline of its own and missed it, so SIGTERM and not SIGINT.
                self.stop("deadline", signal.SIGTERM)
            if self.kill_at is not None and now >= self.kill_at:
                self.signal_all(signal.SIGKILL)
            due = self.deadline if self.kill_at is None else self.kill_at
            received = signal.sigtimedwait(self.SIGNALS, max(0.05, min(self.spec["heartbeat_sec"], due - now)))
            if received is not None and received.si_signo != signal.SIGCHLD and self.kill_at is None:
                if os.path.exists(f"{self.job}/cancel"):
                    self.stop("cancelled", signal.SIGINT)
                else:
                    self.stop("terminated", signal.SIGTERM)
            self.reap()
        self.clear_away()
        self.write_end(self.status)

    def stop(self, why: str, first: int) -> None:
        self.why, self.kill_at = why, time.monotonic() + self.spec["grace_sec"]
        self.signal_all(first)

    def signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, number)

    def reap(self) -> bool:
        """Take in what has ended; whether anything that the command started is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.child:
                    self.status = status
        except ChildProcessError:
            return False

    def clear_away(self) -> None:
        """Kill what the command left behind: its group, and processes in sessions of their own (torchrun's)."""
        deadline = time.monotonic() + 10.0
        while self.reap() and time.monotonic() < deadline:
            self.signal_all(signal.SIGKILL)
            for pid in children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def beat(self) -> None:
        # Overwrites a number of the same length: a reader sees a whole one. A full disk must not end a job.
        with contextlib.suppress(OSError):
            handle = os.open(f"{self.job}/heartbeat", os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.write(handle, b"%14.2f" % uptime_sec())
            finally:
                os.close(handle)

    def write_end(self, status: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        end = {
            "exit_code": os.WEXITSTATUS(status) if number is None else 128 + number,
            "signal": number,
            "why": self.why,
            "wall_time_sec": round(time.monotonic() - self.began, 3),
        }
        until = time.monotonic() + 60.0
        while True:
            try:
                write_atomic(f"{self.job}/end.json", json.dumps(end).encode())
                return
            except OSError:  # a full disk may be freed; without its end marker the job shows as lost
                if time.monotonic() >= until:
                    raise
                time.sleep(1.0)


def become_subreaper() -> None:
    """Orphans of the command become children of this process, which reaps and kills them."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def become(spec: dict[str, Any], job: str, slot: int | None, log: int) -> NoReturn:
    """In the forked child: become the command, which dies with the supervisor; 127 where it cannot be started."""
    what = spec["folder"] or job
    try:
        os.setsid()
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; what is executed would, too
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, Supervisor.SIGNALS)
        for stream in (1, 2):
            os.dup2(log, stream)
        if slot is not None:
            os.set_inheritable(slot, True)
        os.chdir(what)
        what = spec["argv"][0]
        os.execvpe(what, spec["argv"], {**os.environ, **spec["environment"]})  # noqa: S606 - no shell
    except BaseException as error:  # noqa: BLE001 - there is nobody above
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        os.write(log, f"{what}: cannot be started: {why}\n".encode())
    finally:
        os._exit(127)


def children_of(parent: int) -> list[int]:
    children = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in the second field may hold spaces and parentheses; fields count from the last one.
            fields = read_bytes(f"/proc/{int(name)}/stat").rpartition(b")")[2].split()
            if int(fields[1]) == parent:
                children.append(int(name))
    return children
