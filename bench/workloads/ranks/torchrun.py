"""The torchrun process of a trial: starts it, watches its ranks, names a dead or hung rank, and ends all processes.

torchrun and each rank have separate sessions, so a signal to a process group reaches none of them. Instead, on Linux
torchrun dies with the process that started it, and every rank dies with torchrun, also after a SIGKILL; otherwise
processes are ended by pid.

A thread of every rank writes its heartbeat `rank-N.json` about once a second: a stopped or stuck process stops writing,
while ranks that wait for it continue. Rank 0 writes its measurements to `lines.jsonl`. A failing rank first writes
`error-N.json`. Only torchrun's own process imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError, InputRejected
from bench.harness import termination
from bench.harness.termination import Stopped, WorkerGone
from bench.records import Trial
from bench.records.scratch_folders import scratch_folder
from bench.records.status import ReasonCode, TrialStatus
from bench.workloads.ranks.multi_node import NodeList, read_object

LINES_FILE, FAILURES_FILE, TRIAL_FILE = "lines.jsonl", "failures.json", "trial.json"
LAUNCHER_VARIABLE = "QLORA_FLEET_LAUNCHER_PID"
STARTUP_TIMEOUT_SEC = 180.0  # torchrun and every rank import torch: 3 s each, tens of seconds from a cold disk
EXIT_TIMEOUT_SEC = 10.0
LOG_LINES = 8
# Together, a rank's lines fit one message between machines, even as escapes of 12 bytes a character.
MAX_LINE_CHARS, TAIL_BYTES = 500, 1 << 14
PROBE_BYTES = 1 << 16


class RankFailed(RuntimeError):
    """Error for a rank that died or hangs; the message begins with the rank.

    `reason_code` and `remedy` are those of the rank's own error, and `rank` its number, if it has reported one.
    """

    def __init__(
        self, message: str, reason_code: ReasonCode | None = None, remedy: str | None = None, rank: int = 0
    ) -> None:
        super().__init__(message)
        self.reason_code, self.remedy, self.rank = reason_code, remedy, rank


class RankKilled(RankFailed):
    """Error for a rank that was ended by a signal, went silent or hangs, which the trial itself did not cause."""


class RankGone(WorkerGone):
    """Error for a rank whose machine is lost; the message begins with the rank."""


class RankNotStarted(RankGone):
    """Error for a rank whose machine did not join in time."""

    reason_code = ReasonCode.START_TIMED_OUT


class RanksDisconnected(RankGone):
    """Error for ranks that lost their connections to each other, while none of them is known to have failed."""

    reason_code = ReasonCode.CONNECTION_LOST


class RankStopped(RankGone):
    """Error for a rank that had no time to end its step when its machine was stopped; the others then fail too."""


class RankOutOfMemory(MemoryError):
    """Error for a rank that ran out of memory; the message begins with the rank.

    The peaks are that rank's; `peak_vram_bytes` is None on the CPU.
    """

    def __init__(self, message: str, peak_vram_bytes: int | None, peak_rss_bytes: int | None) -> None:
        super().__init__(message)
        self.peak_vram_bytes, self.peak_rss_bytes = peak_vram_bytes, peak_rss_bytes


@dataclass(frozen=True, kw_only=True)
class RankLimits:
    """Timeouts in seconds for a silent rank, and for a step that no rank ends."""

    silence_sec: float
    step_sec: float


@dataclass(kw_only=True)
class RankSample:
    """A rank's last heartbeat, and the times of its last write and last progress (time.monotonic)."""

    heartbeat: dict[str, Any] = field(default_factory=dict)
    last_heartbeat: float
    last_progress: float

    @property
    def position(self) -> str:
        step = self.heartbeat.get("step", 0)
        return str(self.heartbeat.get("phase", "start")) + (f" step {step}" if step else "")


class Torchrun(contextlib.AbstractContextManager["Torchrun"]):
    """The `world_size` ranks of `module`, as a context manager that leaves no process and no file.

    The module is run with the folder, the backend and the two limits; `files` are written to the folder before that.

    All ranks run on this machine. With `nodes`, only this machine's share does, and the heartbeats of the others appear
    in the same folder (`bench.workloads.ranks.multi_node`).
    """

    def __init__(
        self,
        trial: Trial,
        backend: str,
        endpoint: str,
        limits: RankLimits,
        nodes: NodeList | None = None,
        *,
        module: str,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._trial, self._limits = trial, limits
        self._scratch = contextlib.ExitStack()
        # Also removes the folders of killed processes. Versions without locks had another prefix.
        self.folder = self._scratch.enter_context(scratch_folder("qlora-fleet-ranks-locked-"))
        for name, text in {TRIAL_FILE: trial.to_text(), **(files or {})}.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        (self.folder / LINES_FILE).touch()
        self._offset = 0
        self._local_ranks = range(trial.world_size) if nodes is None else nodes.local_ranks(trial.world_size)
        now = time.monotonic()
        self._started = now
        self._samples = [RankSample(last_heartbeat=now, last_progress=now) for _ in range(trial.world_size)]
        argv = (
            *(sys.executable, "-m", "bench.workloads.ranks.torchrun", str(os.getpid()), str(self.folder)),
            *(_single_node_args(trial, endpoint) if nodes is None else _multi_node_args(trial, nodes)),
            *("--monitor-interval", "0.2", "--redirects", "3", "--log-dir", str(self.folder / "logs")),
            *("-m", module, str(self.folder), backend, str(limits.silence_sec), str(limits.step_sec)),
        )
        with (self.folder / "torchrun.log").open("wb") as log:
            variables = rank_environment(is_single_node=nodes is None)
            # In its own session: a stop signal to this process's group would make torchrun leave its exit barrier, for
            # which the torchruns of other machines wait. This process decides how the ranks end.
            self._process = subprocess.Popen(
                argv, env=variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def __exit__(self, *_: object) -> None:
        try:
            self._kill_all()
        except Stopped:  # a stop signal while ending: finish ending first
            self._kill_all()
            raise

    def poll(self) -> int | None:
        """Return torchrun's exit code; None while it runs."""
        return self._process.poll()

    def dispatch_lines(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        """Call `on_line` with each of rank 0's lines since the last call."""
        with (self.folder / LINES_FILE).open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._offset += len(line)
                on_line(json.loads(line))

    def check_progress(self) -> None:
        """Read the ranks' heartbeats.

        Raises RankKilled or RankGone for a silent rank or a step that never ends: a rank's own error comes earlier.
        """
        now = time.monotonic()
        for rank, sample in enumerate(self._samples):
            heartbeat = read_object(self.folder / f"rank-{rank}.json")
            if heartbeat and heartbeat.get("count") != sample.heartbeat.get("count"):
                if heartbeat.get("moves") != sample.heartbeat.get("moves"):
                    sample.last_progress = now
                sample.heartbeat, sample.last_heartbeat = heartbeat, now
            limit = self._limits.silence_sec if sample.heartbeat else STARTUP_TIMEOUT_SEC
            pid = sample.heartbeat.get("pid") if rank in self._local_ranks else None
            state = _state(pid) if pid else "unknown"
            if state in (None, "Z", "X"):
                limit += EXIT_TIMEOUT_SEC  # it has died: torchrun reports the cause in a moment
            if now - sample.last_heartbeat > limit:
                if not sample.heartbeat and rank not in self._local_ranks:
                    raise RankNotStarted(f"rank {rank} did not start within {limit:g} s: no heartbeat from its machine")
                stopped = " (its process is stopped)" if state in ("T", "t") else ""
                position = f"{sample.position}{stopped}{self.last_line(rank)}"
                raise RankKilled(f"rank {rank} has been silent for {limit:g} s in {position}")
        last_progress = max(sample.last_progress for sample in self._samples)
        in_steps = all(sample.heartbeat.get("step") for sample in self._samples)
        if in_steps and now - last_progress > self._limits.step_sec:
            # With several machines, a broken network between two of them leaves every rank alive and waiting.
            has_other_machines = len(self._local_ranks) < len(self._samples)
            raise (RanksDisconnected if has_other_machines else RankKilled)(self._stuck_message())

    def failure(self) -> Exception:
        """Return the error that ended torchrun: the first rank failed by a signal, its own report or its exit code.

        A lost connection counts only if no rank has another error, because it follows from the end of any other rank.
        """
        failures = self.local_failures()
        for path in self.folder.glob("failures-*.json"):
            for name, more in read_object(path).items():
                failures.setdefault(name, []).extend(more)
        paths = [self.folder / f"error-{rank}.json" for rank in range(len(self._samples))]
        errors = sorted(filter(None, map(read_object, paths)), key=lambda error: float(error["at"]))
        faults = [error for error in errors if ReasonCode(error["reason_code"]).is_worker_faulty]
        # Whatever else happened follows from a faulty GPU.
        return self._error_of(faults[0]) if faults else self._first_failure(failures, errors)

    def _first_failure(self, failures: Mapping[str, Any], errors: list[dict[str, Any]]) -> Exception:
        for rank in failures.get("stopped", []):
            return RankStopped(f"one of its workers was told to stop, and rank {rank} had no time to end its step")
        for rank, code in failures.get("ranks", []):
            if code < 0 and code != -signal.SIGTERM:  # torchrun ends the others by SIGTERM
                name = signal.Signals(-code).name
                return RankKilled(
                    f"rank {rank} was killed by {name} in {self._samples[rank].position}{self.last_line(rank)}"
                )
        for rank in failures.get("gone", []):
            return RankGone(
                f"rank {rank} is gone with its machine in {self._samples[rank].position}{self.last_line(rank)}"
            )
        for error in errors:
            if ReasonCode(error["reason_code"]).status is not TrialStatus.LOST:
                return self._error_of(error)
        try:  # ranks that cannot write here cannot report it either
            (self.folder / "probe").write_bytes(bytes(PROBE_BYTES))
        except OSError as error:
            return RankFailed(
                f"{self.folder.parent}: {error.strerror}", ReasonCode.NOT_WRITTEN, "free some space there"
            )
        disconnected = {int(error["rank"]) for error in errors}
        for rank, code in failures.get("ranks", []):
            if rank in disconnected or (errors and code == -signal.SIGTERM):
                continue
            name = f"signal {-code}" if code < 0 else f"code {code}"
            return RankFailed(f"rank {rank} ended with {name} in {self._samples[rank].position}{self.last_line(rank)}")
        if errors:
            return self._error_of(errors[0])
        tail = failures.get("torchrun") or " ".join(_tail(self.folder / "torchrun.log")[-1:]) or "no output"
        message = f"torchrun ended with code {self._process.returncode}: {tail}"
        return RanksDisconnected(message) if termination.is_connection_error(tail) else RankFailed(message)

    def _error_of(self, report: dict[str, Any]) -> Exception:
        """Return the error that a rank has reported in its error file."""
        code = ReasonCode(report["reason_code"])
        if code.is_rejected:
            return (InputRejected if code is ReasonCode.INPUT_REJECTED else InputError)(report["reason"])
        message = f"rank {report['rank']}: {report['reason']} (in {self._samples[report['rank']].position})"
        if code is ReasonCode.OUT_OF_MEMORY:
            return RankOutOfMemory(message, report.get("vram_bytes"), report.get("rss_bytes"))
        if code is ReasonCode.CONNECTION_LOST:
            return RanksDisconnected(message)
        return RankFailed(message, code, report.get("remedy"), int(report["rank"]))

    def local_failures(self) -> dict[str, Any]:
        """Return torchrun's report of failed ranks on this machine; empty if none failed."""
        if (self._process.poll() or 0) < 0:  # torchrun was killed, and its ranks died with it
            return {"ranks": [(rank, -signal.SIGKILL) for rank in self._local_ranks]}
        return read_object(self.folder / FAILURES_FILE)

    def last_line(self, rank: int) -> str:
        """Return a rank's last log line as the end of a reason."""
        lines = self.last_lines(rank)
        return f"; its last line: {lines[-1][:120]}" if lines else ""

    def last_lines(self, rank: int) -> list[str]:
        """Return a rank's last log lines, from both streams."""
        paths = sorted(self.folder.glob(f"logs/**/{rank}/std*.log"), key=lambda path: path.name, reverse=True)
        return [line for path in paths for line in _tail(path)][-LOG_LINES:]

    def _stuck_message(self) -> str:
        behind = [rank for rank, sample in enumerate(self._samples) if not sample.heartbeat.get("waiting")]
        ranks = " and ".join(f"rank {rank}" for rank in behind) if behind else "no rank"
        ended = "have not ended" if len(behind) > 1 else "has not ended"
        position = self._samples[behind[0] if behind else 0].position
        last_line = self.last_line(behind[0]) if behind else ""
        return f"{ranks} {ended} {position} within {self._limits.step_sec:g} s{last_line}"

    def _kill_all(self) -> None:
        """Kill torchrun and its descendants, and remove the folder. Raises RankFailed if a process survives."""
        pids = descendant_pids(self._process.pid) if self._process.poll() is None else []
        known = [sample.heartbeat["pid"] for sample in self._samples if "pid" in sample.heartbeat]
        pids += [pid for pid in known if self._is_rank(pid)]
        if self._process.poll() is None:
            self._process.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(EXIT_TIMEOUT_SEC)
        deadline = time.monotonic() + EXIT_TIMEOUT_SEC
        while left := [pid for pid in pids if _state(pid) not in (None, "Z", "X")]:
            if time.monotonic() > deadline:
                raise RankFailed(f"processes {left} survive SIGKILL: the driver blocks them; restart this host")
            time.sleep(0.02)
        with contextlib.suppress(OSError):
            self._scratch.close()

    def _is_rank(self, pid: int) -> bool:
        # The folder's name is unique, so a process with a reused pid is not mistaken for a rank.
        try:
            return str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


def _single_node_args(trial: Trial, endpoint: str) -> tuple[str, ...]:
    return (
        *("--nnodes", "1", "--nproc-per-node", str(trial.world_size), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1"),
    )


def _multi_node_args(trial: Trial, nodes: NodeList) -> tuple[str, ...]:
    # Static rendezvous: machine n has the n-th share of the ranks, and no name is resolved.
    local_count = str(len(nodes.local_ranks(trial.world_size)))
    return (
        *("--nnodes", str(nodes.count), "--node-rank", str(nodes.rank), "--nproc-per-node", local_count),
        *("--max-restarts", "0", "--rdzv-backend", "static", "--rdzv-conf", f"timeout={int(STARTUP_TIMEOUT_SEC)}"),
        *("--master-addr", nodes.address, "--master-port", str(nodes.port)),
    )


def rank_environment(*, is_single_node: bool = True) -> dict[str, str]:
    """Return the ranks' environment: no name resolution, no endless collectives, one thread each unless set."""
    return {
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if is_single_node and sys.platform == "linux" else {}),
        **os.environ,
        "PYTHONUNBUFFERED": "1",
    }


def descendant_pids(root: int) -> list[int]:
    """Return all descendants of the process `root`, from /proc; empty if there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    pids, pending = [], [root]
    while pending:
        below = children.get(pending.pop(), [])
        pids += below
        pending += below
    return pids


def exit_with_parent(parent: int) -> None:
    """Make SIGKILL end this process when its parent process `parent` dies, on Linux only."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent has already died
        os._exit(1)


def _state(pid: int | None) -> str | None:
    """Return a process's state in Linux' notation (R, S, T, Z, ...); None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip()[:MAX_LINE_CHARS] for line in text.splitlines() if line.strip()][-LOG_LINES:]


def main(argv: list[str]) -> int:
    """Run torchrun. `argv`: the pid of the parent that it dies with, the report's folder, torchrun's arguments."""
    exit_with_parent(int(argv[0]))
    os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
    from torch.distributed import run  # other processes import this module and must not import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(argv[2:]))
    except ChildFailedError as error:
        failures: dict[str, Any] = {"ranks": [(rank, failure.exitcode) for rank, failure in error.failures.items()]}
    except Exception as error:  # noqa: BLE001 - `Torchrun.failure` reports it in one line
        failures = {"torchrun": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    else:
        return 0
    (Path(argv[1]) / FAILURES_FILE).write_text(json.dumps(failures), encoding="utf-8")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
