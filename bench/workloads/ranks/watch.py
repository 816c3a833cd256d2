"""The ranks of a trial: starts those of this machine, watches all, names a dead or hung one, and ends them.

Each rank has a session of its own, so a signal to this process's group reaches none of them. Every rank dies with the
process that started it, also after a SIGKILL.

A thread of every rank writes its heartbeat `rank-N.json` about once a second: a stopped or stuck process stops writing,
while ranks that wait for it continue. Rank 0 writes its measurements to `lines.jsonl`. A failing rank first writes
`error-N.json`. The output of a rank is in `rank-N.log`. This module does not import torch.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError, InputRejected
from bench.harness.termination import Stopped, WorkerGone
from bench.records import Trial
from bench.records.atomic_files import write_atomic
from bench.records.scratch_folders import scratch_folder
from bench.records.status import ReasonCode, TrialStatus
from bench.workloads.ranks.multi_node import NodeList, read_object

LINES_FILE, TRIAL_FILE = "lines.jsonl", "trial.json"
LAUNCHER_VARIABLE, RENDEZVOUS_VARIABLE = "QLORA_FLEET_LAUNCHER_PID", "QLORA_FLEET_RENDEZVOUS"
STARTUP_TIMEOUT_SEC = 180.0  # every rank imports torch: 3 s, tens of seconds from a cold disk
REPORT_SEC = 5.0  # after the first failed rank the others report theirs: gloo and NCCL fail immediately
EXIT_TIMEOUT_SEC = 10.0
LOG_LINES = 8
# Together, a rank's lines fit one message between machines, even as escapes of 12 bytes a character.
MAX_LINE_CHARS, TAIL_BYTES = 500, 1 << 14
PROBE_BYTES = 1 << 16


class RankFailed(RuntimeError):
    """Error for a rank that died or hangs; the message begins with the rank.

    `reason_code` and `remedy` are those of the rank's own error, if it has reported one.
    """

    def __init__(self, message: str, reason_code: ReasonCode | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.reason_code, self.remedy = reason_code, remedy


class RankKilled(RankFailed):
    """Error for a rank that was ended by a signal, went silent or hangs, which the trial itself did not cause."""


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


class Ranks(contextlib.AbstractContextManager["Ranks"]):
    """The `world_size` ranks of `module`, as a context manager that leaves no process and no file.

    The module is run with the folder, the backend and the two limits.

    All ranks run on this machine. With `nodes`, only this machine's share does, and the heartbeats of the others appear
    in the same folder (`bench.workloads.ranks.multi_node`).
    """

    def __init__(
        self,
        trial: Trial,
        backend: str,
        limits: RankLimits,
        nodes: NodeList | None = None,
        *,
        module: str,
    ) -> None:
        self._limits = limits
        self._scratch = contextlib.ExitStack()
        self.folder = self._scratch.enter_context(scratch_folder("qlora-fleet-ranks-"))  # and removes stale ones
        self.write_files({TRIAL_FILE: trial.to_text()})
        (self.folder / LINES_FILE).touch()
        self._offset = 0
        self._failed_at: float | None = None
        now = time.monotonic()
        self._samples = [RankSample(last_heartbeat=now, last_progress=now) for _ in range(trial.world_size)]
        local_ranks = range(trial.world_size) if nodes is None else nodes.local_ranks(trial.world_size)
        argv = (
            *(sys.executable, "-m", module),
            *(str(self.folder), backend, str(limits.silence_sec), str(limits.step_sec)),
        )
        variables = rank_environment(self.folder, trial.world_size, nodes)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for rank in local_ranks:
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank - local_ranks[0])}
                with (self.folder / f"rank-{rank}.log").open("wb") as log:
                    self._processes[rank] = subprocess.Popen(
                        argv,
                        env={**variables, **own},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
        except BaseException:  # also a stop signal
            self._kill_all()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._kill_all()
        except Stopped:  # a stop signal while ending: finish ending first
            self._kill_all()
            raise

    def write_files(self, files: Mapping[str, str]) -> None:
        """Write the ranks' files, texts by name, in this order. Ranks that wait for the last one may read all."""
        for name, text in files.items():
            write_atomic(self.folder / name, text.encode())

    def poll(self) -> int | None:
        """Return 0 once all ranks have succeeded, 1 once one has failed and others had time to report, else None."""
        codes = [process.poll() for process in self._processes.values()]
        if not any(codes):
            return None if None in codes else 0
        self._failed_at = self._failed_at or time.monotonic()
        return None if None in codes and time.monotonic() < self._failed_at + REPORT_SEC else 1

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

        Raises RankKilled or WorkerGone for a silent rank or a step that never ends: a rank's own error comes earlier.
        """
        now = time.monotonic()
        for rank, sample in enumerate(self._samples):
            heartbeat = read_object(self.folder / f"rank-{rank}.json")
            if heartbeat and heartbeat.get("count") != sample.heartbeat.get("count"):
                if heartbeat.get("moves") != sample.heartbeat.get("moves"):
                    sample.last_progress = now
                sample.heartbeat, sample.last_heartbeat = heartbeat, now
            limit = self._limits.silence_sec if sample.heartbeat else STARTUP_TIMEOUT_SEC
            process = self._processes.get(rank)
            if process is not None and process.poll() is not None:
                continue  # `poll` reports its end
            if now - sample.last_heartbeat > limit:
                if not sample.heartbeat and process is None:
                    reason = f"rank {rank} did not start within {limit:g} s: no heartbeat from its machine"
                    raise WorkerGone(reason, ReasonCode.START_TIMED_OUT)
                raise RankKilled(f"rank {rank} has been silent for {limit:g} s {self._where(rank)}")
        last_progress = max(sample.last_progress for sample in self._samples)
        in_steps = all(sample.heartbeat.get("step") for sample in self._samples)
        if in_steps and now - last_progress > self._limits.step_sec:
            # With several machines, a broken network between two of them leaves every rank alive and waiting.
            if len(self._processes) < len(self._samples):
                raise WorkerGone(self._stuck_message(), ReasonCode.CONNECTION_LOST)
            raise RankKilled(self._stuck_message())

    def failure(self, others: Sequence[Mapping[str, list[Any]]] = ()) -> BaseException:
        """Return the error that ended the ranks: the first rank failed by a signal, its own report or its exit code.

        `others` are the failures of other machines. A lost connection counts only if no rank has another error, because
        it follows from the end of any other rank.
        """
        failures: dict[str, list[Any]] = {"ranks": [], "errors": [], "stopped": [], "gone": []}
        for machine in (self.local_failures(), *others):
            for name, more in machine.items():
                failures[name] += more
        errors = sorted(failures["errors"], key=lambda error: float(error["at"]))
        faults = [error for error in errors if ReasonCode(error["reason_code"]).is_worker_faulty]
        # Whatever else happened follows from a faulty GPU.
        return self._error_of(faults[0]) if faults else self._first_failure(failures, errors)

    def _first_failure(self, failures: Mapping[str, list[Any]], errors: list[dict[str, Any]]) -> BaseException:
        for rank in failures["stopped"]:
            reason = f"one of its workers was told to stop, and rank {rank} had no time to end its step"
            return Stopped(ReasonCode.WORKER_STOPPED, reason)
        for rank, code in failures["ranks"]:
            if code < 0:
                return RankKilled(f"rank {rank} was killed by {signal.Signals(-code).name} {self._where(rank)}")
        for rank in failures["gone"]:
            return WorkerGone(f"rank {rank} is gone with its machine {self._where(rank)}")
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
        for rank, code in failures["ranks"]:
            if rank not in disconnected:
                return RankFailed(f"rank {rank} ended with code {code} {self._where(rank)}")
        return self._error_of(errors[0])

    def _error_of(self, report: dict[str, Any]) -> Exception:
        """Return the error that a rank has reported in its error file."""
        code = ReasonCode(report["reason_code"])
        if code.is_rejected:
            return (InputRejected if code is ReasonCode.INPUT_REJECTED else InputError)(report["reason"])
        message = f"rank {report['rank']}: {report['reason']} (in {self._samples[report['rank']].position})"
        if code is ReasonCode.OUT_OF_MEMORY:
            return RankOutOfMemory(message, report.get("vram_bytes"), report.get("rss_bytes"))
        if code is ReasonCode.CONNECTION_LOST:
            return WorkerGone(message, code)
        return RankFailed(message, code, report.get("remedy"))

    def local_failures(self) -> dict[str, list[Any]]:
        """Return this machine's failed ranks with their exit codes, and its ranks' errors; empty without any."""
        failed = [(rank, code) for rank, process in self._processes.items() if (code := process.poll())]
        errors = [error for rank in self._processes if (error := read_object(self.folder / f"error-{rank}.json"))]
        return {"ranks": failed, "errors": errors} if failed or errors else {}

    def last_lines(self, rank: int) -> list[str]:
        """Return the last lines of a rank's output."""
        try:
            with (self.folder / f"rank-{rank}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = file.read(TAIL_BYTES).decode(errors="replace")
        except OSError:
            return []
        return [line.rstrip()[:MAX_LINE_CHARS] for line in text.splitlines() if line.strip()][-LOG_LINES:]

    def _where(self, rank: int) -> str:
        """Return a rank's position and last line as the end of a reason."""
        lines = self.last_lines(rank)
        last_line = f"; its last line: {lines[-1][:120]}" if lines else ""
        return f"in {self._samples[rank].position}{last_line}"

    def _stuck_message(self) -> str:
        behind = [rank for rank, sample in enumerate(self._samples) if not sample.heartbeat.get("waiting")]
        ranks = " and ".join(f"rank {rank}" for rank in behind) if behind else "no rank"
        ended = "have not ended" if len(behind) > 1 else "has not ended"
        return f"{ranks} {ended} a step within {self._limits.step_sec:g} s {self._where(behind[0] if behind else 0)}"

    def _kill_all(self) -> None:
        """Kill the ranks with their children, and remove the folder. Raises RankFailed if a rank survives."""
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        try:
            for process in self._processes.values():
                process.wait(EXIT_TIMEOUT_SEC)
        except subprocess.TimeoutExpired as error:
            left = [process.pid for process in self._processes.values() if process.poll() is None]
            raise RankFailed(f"processes {left} survive SIGKILL: the driver blocks them; restart this host") from error
        with contextlib.suppress(OSError):
            self._scratch.close()


def rank_environment(folder: Path, world_size: int, nodes: NodeList | None) -> dict[str, str]:
    """Return the environment of all ranks: no name resolution, no endless collectives, one thread each unless set.

    On one machine they meet in a file of `folder`, on several at the first one's address.
    """
    usual = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if nodes is None:
        usual["GLOO_SOCKET_IFNAME"] = "lo"
        meeting = {RENDEZVOUS_VARIABLE: f"file://{folder}/rendezvous"}
    else:
        meeting = {RENDEZVOUS_VARIABLE: "env://", "MASTER_ADDR": nodes.address, "MASTER_PORT": str(nodes.port)}
    return {
        **usual,
        **os.environ,
        **meeting,
        LAUNCHER_VARIABLE: str(os.getpid()),
        "WORLD_SIZE": str(world_size),
        "PYTHONUNBUFFERED": "1",
    }


def exit_with_parent(parent: int) -> None:
    """Make SIGKILL end this process when its parent process `parent` dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent has already died
        os._exit(1)
