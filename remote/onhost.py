"""The small program that runs on a host: detached jobs, and files moved in verified pieces.

`remote.agent` puts this one file into the host's work folder and calls it as `python onhost.py VERB JSON`, over
whatever carries commands there. Standard library alone, Python 3.9 or newer, Linux. It answers in lines of checksum and
JSON (or raw bytes for `send`) and exits 0; when it cannot do what was asked it says why on standard error and exits 3,
and 4 when what it was sent ended early.

A job is a folder. `start` claims it, leaves a supervisor behind and returns; the supervisor outlives the connection,
runs the command in a session of its own, enforces the deadline, and writes `end.json` last. What holds the truth:

- `lock`      flock held by the supervisor for as long as it lives, so a recycled pid cannot look like a live job;
- `heartbeat` the host's uptime in seconds, rewritten every `heartbeat_sec`; uptime, because a clock can be set back;
- `end.json`  how the command ended; its presence is the end marker.

A *slot* is a file locked by the supervisor and by everything it started: at most one job at a time holds it, and an
orphan that survived its supervisor still does.

Not covered: a host that loses power between the command's last write and end.json; the job then shows as lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

PIECE = 1 << 20
REFUSED = 3  # this program's exit code for "cannot be done, and here is why"
CUT_SHORT = 4  # and for "standard input ended early": the stream broke, another try may well succeed


class Refusal(Exception):
    """What was asked cannot be done; the message goes back to the caller."""


class CutShort(Exception):
    """Standard input ended before all that was promised on it."""


# --- small parts ------------------------------------------------------------------------------------------------------


def write_atomic(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """The parsed file, or None where it is absent or (progress being replaced, a torn disk) not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


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


def uptime_sec() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def say(document: object) -> None:
    """One line: the CRC-32 of the JSON text, and the text. A carrier that loses or spoils part of it is found out."""
    text = json.dumps(document)
    sys.stdout.write(f"{zlib.crc32(text.encode()):08x} {text}\n")
    sys.stdout.flush()


def read_exactly(size: int) -> bytes:
    """The `size` bytes promised on standard input; waiting for its end would trust the carrier to close it."""
    content = sys.stdin.buffer.read(size)
    if len(content) != size:
        raise CutShort(f"standard input ended after {len(content)} of {size} bytes")
    return content


def inside(root: str, name: str) -> Path:
    """`name` below `root`. Refuses what would leave it."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
        raise Refusal(f"{name!r} is not a path inside the folder")
    return Path(root, *parts)


# --- jobs -------------------------------------------------------------------------------------------------------------


def start(arguments: dict[str, Any]) -> None:
    """Start the job, or say what it already is. Starting the same job twice starts it once."""
    spec = json.loads(read_exactly(arguments["stdin_bytes"]))
    job = Path(arguments["job"])
    claim_folder(job, spec)
    lock = os.open(job / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    # A passing `watch` may hold the lock for an instant; a supervisor holds it for good.
    if not try_lock(lock, within_sec=0.5) or has_begun(job):
        os.close(lock)
        say(state_of(job))
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
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        detach_and_supervise(job, json.loads((job / "spec.json").read_bytes()), slot, ready_write)
    os.close(ready_write)
    with os.fdopen(ready_read, "rb") as ready:
        complaint = ready.read().decode(errors="replace")
    if complaint:
        raise Refusal(complaint)
    say({**state_of(job), "started": True})


def has_begun(job: Path) -> bool:
    return (job / "supervisor.json").exists() or (job / "end.json").exists()


def claim_folder(job: Path, spec: dict[str, Any]) -> None:
    """Make the job's folder with its spec and input files in one step, so that it is whole or absent."""
    if job.exists():
        return
    job.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=job.parent, prefix=f".{job.name}.") as temporary:
        made = Path(temporary, "job")
        made.mkdir()
        for name, text in spec.pop("files", {}).items():
            inside(str(made), name).write_text(text, encoding="utf-8")
        write_atomic(made / "spec.json", json.dumps(spec).encode())
        with contextlib.suppress(OSError):  # somebody else claimed it in between: theirs stands
            os.rename(made, job)
    sync_folder(job.parent)
    if not job.exists():
        raise Refusal(f"{job} could not be made")


def state_of(job: Path) -> dict[str, Any]:
    """absent | waiting (claimed, never started) | running | ended | lost (its supervisor died without an end)."""
    if not job.is_dir():
        return {"state": "absent"}
    # The end is looked for after liveness: a supervisor that ends in between has written it by then.
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
        # The cheap look first: taking the lock to test liveness ten times a second would get in a starter's way.
        if now >= due or (job / "end.json").exists():
            state = state_of(job)
            say({**state, "progress": read_json(progress_file)})
            if state["state"] != "running" or now >= until:
                return
            due = min(now + arguments["every_sec"], until)
        time.sleep(0.05)


def cancel(arguments: dict[str, Any]) -> None:
    """Stop the job: interrupt, then kill, everything it started. Waits for its end and says it.

    A job that has not begun ends without ever beginning, a starter that still waits for the slot included.
    """
    job, deadline, told = Path(arguments["job"]), time.monotonic() + arguments["grace_sec"] + 10.0, False
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
        elif not told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor["pid"], signal.SIGTERM)
            told = True
        time.sleep(0.05)


def end_unbegun(job: Path) -> None:
    """The end of a job that was cancelled before it began; whoever holds its lock may write it."""
    if not (job / "supervisor.json").exists():
        end = {"exit_code": 128 + signal.SIGINT, "signal": None, "why": "cancelled", "wall_time_sec": 0.0}
        write_atomic(job / "end.json", json.dumps(end).encode())


def holder(arguments: dict[str, Any]) -> None:
    """Which job holds the slot, if any."""
    found = None
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(arguments["slot"], os.O_RDWR)
        if not try_lock(handle, within_sec=0.2):
            found = os.read(handle, 4096).decode(errors="replace").strip()
    say({"holder": found})


def tail(arguments: dict[str, Any]) -> None:
    """The last `size` bytes of a file, as text; empty where there is none."""
    text = b""
    with contextlib.suppress(FileNotFoundError), inside(arguments["root"], arguments["path"]).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - arguments["size"]))
        text = file.read(arguments["size"])
    say({"text": text.decode(errors="replace")})


# --- the supervisor ---------------------------------------------------------------------------------------------------


def detach_and_supervise(job: Path, spec: dict[str, Any], slot: int | None, ready: int) -> NoReturn:
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
        supervisor.attend()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last frame of a detached process: say it or nobody hears it
        complaint = f"supervisor: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(ready, complaint.encode())
        with contextlib.suppress(OSError), (job / "log.txt").open("a") as log:
            log.write(complaint + "\n")
    finally:
        os._exit(code)


class Supervisor:
    """Runs one command to its end: heartbeat, deadline, cancellation, and nothing left running behind it."""

    SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

    def __init__(self, job: Path, spec: dict[str, Any], slot: int | None) -> None:
        self.job, self.spec, self.slot = job, spec, slot
        self.began = time.monotonic()
        self.deadline = self.began + spec["deadline_sec"]
        self.kill_at: float | None = None
        self.why = "exited"
        self.child = 0
        self.status: int | None = None

    def begin(self) -> None:
        become_subreaper()
        write_atomic(self.job / "supervisor.json", json.dumps({"pid": os.getpid()}).encode())
        self.beat()
        log = os.open(self.job / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            process = subprocess.Popen(
                self.spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.spec["folder"] or self.job,
                env={**os.environ, **self.spec["environment"]},
                start_new_session=True,
                pass_fds=() if self.slot is None else (self.slot,),
                preexec_fn=let_signals_through,
            )
            self.child = process.pid
            process.returncode = 0  # reaped by waitpid below; Popen's own finalizer must not look for it
        except OSError as error:
            os.write(log, f"{self.spec['argv'][0]}: cannot be started: {error.strerror}\n".encode())
            self.status = 127 << 8
        finally:
            os.close(log)

    def attend(self) -> None:
        while self.status is None:
            self.beat()
            now = time.monotonic()
            if self.kill_at is None and now >= self.deadline:
                # By now the command has had its own deadline and did not keep it; no polite signal is owed.
                self.stop("deadline", signal.SIGTERM)
            if self.kill_at is not None and now >= self.kill_at:
                self.signal_all(signal.SIGKILL)
            due = self.deadline if self.kill_at is None else self.kill_at
            received = signal.sigtimedwait(self.SIGNALS, max(0.05, min(self.spec["heartbeat_sec"], due - now)))
            if received is not None and received.si_signo != signal.SIGCHLD and self.kill_at is None:
                if (self.job / "cancel").exists():
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
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child, number)

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.child:
                    self.status = status

    def clear_away(self) -> None:
        """Kill what the command left behind: its group, and what escaped into sessions of its own (torchrun does)."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            self.signal_all(signal.SIGKILL)
            left = children_of(os.getpid())
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            self.reap()
            time.sleep(0.01)

    def beat(self) -> None:
        # One short write over the last one: a reader sees a whole number either way. A full disk must not end a job.
        with contextlib.suppress(OSError), (self.job / "heartbeat").open("w") as file:
            file.write(f"{uptime_sec():.2f}")

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
                write_atomic(self.job / "end.json", json.dumps(end).encode())
                return
            except OSError:  # a full disk may be freed; without its end marker the job shows as lost
                if time.monotonic() >= until:
                    raise
                time.sleep(1.0)


def become_subreaper() -> None:
    """Orphans of the command become ours to reap and to kill, instead of the init process's."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def let_signals_through() -> None:
    """In the command's process: unblock signals, and die with the supervisor rather than run on unsupervised."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, Supervisor.SIGNALS)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def children_of(parent: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in the second field may hold spaces and parentheses; fields count from the last one.
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(process.name))
    return found


# --- files ------------------------------------------------------------------------------------------------------------


def manifest(arguments: dict[str, Any]) -> None:
    """A line for every regular file below `root`: path, size in bytes, sha256. Links and partial files are left out."""
    root = Path(arguments["root"])
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file() or name.endswith(".part"):
                continue
            size, digest = digest_of(path)
            say({"path": str(path.relative_to(root)), "size": size, "sha256": digest})
    say({"end": True})


def digest_of(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def send(arguments: dict[str, Any]) -> None:
    """The bytes of the ranges listed on standard input, one after the other, and nothing else."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        left = wanted["length"]
        with inside(arguments["root"], wanted["path"]).open("rb") as file:
            file.seek(wanted["offset"])
            while left > 0:
                piece = file.read(min(PIECE, left))
                if not piece:
                    raise Refusal(f"{wanted['path']} is shorter than it was")
                sys.stdout.buffer.write(piece)
                left -= len(piece)
    sys.stdout.buffer.flush()


def missing(arguments: dict[str, Any]) -> None:
    """For each file of the manifest on standard input: how many of its bytes are here, and whether it is whole."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        path = inside(arguments["root"], wanted["path"])
        part = part_of(path, wanted["sha256"])
        whole = path.is_file() and digest_of(path) == (wanted["size"], wanted["sha256"])
        have = part.stat().st_size if part.is_file() else 0
        say({"path": wanted["path"], "whole": whole, "have": wanted["size"] if whole else have})


def receive(arguments: dict[str, Any]) -> None:
    """Take files from standard input: one JSON line that lists them, then their bytes from each `offset` on."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        path = inside(arguments["root"], wanted["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(path, wanted["sha256"])
        # Not appended: the receiver of a broken stream may live on for a while, and would add its last bytes to ours.
        # At their own places they are the same bytes, because the digest is in the file's name.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.truncate(wanted["offset"])
            file.seek(wanted["offset"])
            took = take(file, wanted["size"] - wanted["offset"])
            os.fsync(file.fileno())
        if not took:
            raise CutShort(f"standard input ended inside {wanted['path']}")
        if digest_of(part) != (wanted["size"], wanted["sha256"]):
            part.unlink()
            say({"path": wanted["path"], "ok": False})
            continue
        os.replace(part, path)
        sync_folder(path.parent)
        say({"path": wanted["path"], "ok": True})


def take(file: BinaryIO, size: int) -> bool:
    stream = cast("BufferedReader", sys.stdin.buffer)
    while size > 0:
        piece = stream.read1(min(PIECE, size))  # what is there now: waiting for more would lose it with the stream
        if not piece:
            return False
        file.write(piece)
        size -= len(piece)
    return True


def part_of(path: Path, sha256: str) -> Path:
    """Where the bytes so far of this very content are kept; the digest in the name keeps two versions apart."""
    return path.with_name(f".{path.name}.{sha256[:16]}.part")


VERBS = {verb.__name__: verb for verb in (start, watch, cancel, holder, tail, manifest, send, missing, receive)}


def main() -> int:
    try:
        VERBS[sys.argv[1]](json.loads(sys.argv[2]))
    except (Refusal, CutShort, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return CUT_SHORT if isinstance(error, CutShort) else REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
