"""Starts torchrun, watches its ranks, names the one that died or hangs, and ends all processes.

torchrun starts each rank in a session of its own, so a signal to a process group reaches none of them. Instead, on
Linux torchrun dies with the process that started it and every rank with torchrun, also after a SIGKILL; otherwise
processes are ended by pid.

A thread of every rank writes `rank-N.json` about once a second: a stopped or stuck process writes none, while ranks
that wait for it go on writing. Rank 0 writes its measurements to `lines.jsonl`. A rank that fails writes `error-N.json`
first. Only torchrun's own process imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.harness.termination import Stopped, WorkerGone
from bench.records import Trial
from bench.records.result import TrialStatus
from bench.workloads.distributed.multi_node import NodeList, read_object

LINES_FILE, FAILURES_FILE, TRIAL_FILE = "lines.jsonl", "failures.json", "trial.json"
LAUNCHER_VARIABLE = "QLORA_FLEET_LAUNCHER_PID"
FIRST_SIGN_SEC = 180.0  # torchrun and then every rank import torch: 3 s each, tens of seconds from a cold disk
GONE_SEC = 10.0
LOG_LINES = 8
DID_NOT_COME = "did not come within"  # in the reason of a trial that has waited in vain for a machine


class RankFailed(RuntimeError):
    """A rank died or hangs; the message begins with which."""


class RankKilled(RankFailed):
    """A signal ended a rank, or it has gone silent: whatever did that, the trial itself did not."""


class RankGone(WorkerGone):
    """A rank's machine is gone; the message begins with which."""


class RankStopped(RankGone):
    """A rank's machine was told to stop, and the rank had no time to end its step; the others fail because of it."""


class RankOutOfMemory(MemoryError):
    """A rank ran out of memory; the message begins with which. The peaks are that rank's; of VRAM None on the CPU."""

    def __init__(self, words: str, peak_vram_bytes: int | None, peak_rss_bytes: int | None) -> None:
        super().__init__(words)
        self.peak_vram_bytes, self.peak_rss_bytes = peak_vram_bytes, peak_rss_bytes


@dataclass(frozen=True, kw_only=True)
class RankLimits:
    """Seconds after which a silent rank, and a step that no rank ends, count as hung."""

    silence_sec: float
    step_sec: float


@dataclass(kw_only=True)
class RankSample:
    """A rank's last sign: what it wrote, and when it last wrote and last advanced (time.monotonic)."""

    sign: dict[str, Any] = field(default_factory=dict)
    heard: float
    moved: float

    @property
    def place(self) -> str:
        step = self.sign.get("step", 0)
        return str(self.sign.get("phase", "start")) + (f" step {step}" if step else "")


class Torchrun(contextlib.AbstractContextManager["Torchrun"]):
    """`world_size` ranks of `module`; a context manager that leaves no process and no file.

    The module is run with the folder, the backend and the two limits; `files` lie in the folder before it starts.

    They run on this machine; with `machines` only this machine's share of them does, and the signs of the others appear
    in the same folder (`bench.workloads.distributed.multi_node`).
    """

    def __init__(
        self,
        trial: Trial,
        backend: str,
        endpoint: str,
        limits: RankLimits,
        machines: NodeList | None = None,
        *,
        module: str = "bench.workloads.distributed.rank",
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._trial, self._limits = trial, limits
        self.folder = Path(tempfile.mkdtemp(prefix="qlora-fleet-ranks-"))
        for name, text in {TRIAL_FILE: trial.to_text(), **(files or {})}.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        (self.folder / LINES_FILE).touch()
        self._taken = 0
        self._here = range(trial.world_size) if machines is None else machines.ranks_here(trial.world_size)
        now = time.monotonic()
        self._started = now
        self._seen = [RankSample(heard=now, moved=now) for _ in range(trial.world_size)]
        argv = (
            *(sys.executable, "-m", "bench.workloads.distributed.torchrun", str(os.getpid()), str(self.folder)),
            *(_on_one_machine(trial, endpoint) if machines is None else _on_several(trial, machines)),
            *("--monitor-interval", "0.2", "--redirects", "3", "--log-dir", str(self.folder / "logs")),
            *("-m", module, str(self.folder), backend, str(limits.silence_sec), str(limits.step_sec)),
        )
        with (self.folder / "torchrun.log").open("wb") as log:
            variables = environment(is_alone=machines is None)
            self._process = subprocess.Popen(argv, env=variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        try:
            self._end()
        except Stopped:  # stopped while ending: end first
            self._end()
            raise

    def poll(self) -> int | None:
        """torchrun's exit code; None while it runs."""
        return self._process.poll()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Rank 0's lines since the last call."""
        with (self.folder / LINES_FILE).open("rb") as file:
            file.seek(self._taken)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._taken += len(line)
                yield json.loads(line)

    def hand_on(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Call `take` with each of rank 0's lines since the last call."""
        for line in self.lines():
            take(line)

    def look(self) -> None:
        """Read the ranks' signs. Raises RankFailed for a silent rank or a step that never ends."""
        now = time.monotonic()
        for rank, seen in enumerate(self._seen):
            sign = read_object(self.folder / f"rank-{rank}.json")
            if sign and sign.get("count") != seen.sign.get("count"):
                if sign.get("moves") != seen.sign.get("moves"):
                    seen.moved = now
                seen.sign, seen.heard = sign, now
            limit = self._limits.silence_sec if seen.sign else FIRST_SIGN_SEC
            pid = seen.sign.get("pid") if rank in self._here else None
            state = _state(pid) if pid else "unknown"
            if state in (None, "Z", "X"):
                limit += GONE_SEC  # it has died: torchrun reports the cause in a moment
            if now - seen.heard > limit:
                if not seen.sign and rank not in self._here:
                    raise RankGone(f"rank {rank} {DID_NOT_COME} {limit:g} s: nothing was heard of its machine")
                stopped = " (its process is stopped)" if state in ("T", "t") else ""
                where = f"{seen.place}{stopped}{self.last(rank)}"
                raise RankKilled(f"rank {rank} has been silent for {limit:g} s in {where}")
        last_move = max(seen.moved for seen in self._seen)
        in_steps = all(seen.sign.get("step") for seen in self._seen)
        if in_steps and now - last_move > self._limits.step_sec:
            raise RankFailed(self._stuck())

    def failure(self) -> Exception:
        """Why torchrun ended with an error: the rank that failed first, by signal, by its own report, by exit code."""
        known = self.failures()
        for path in self.folder.glob("failures-*.json"):
            for name, more in read_object(path).items():
                known.setdefault(name, []).extend(more)
        for rank in known.get("stopped", []):
            return RankStopped(f"one of its workers was told to stop, and rank {rank} had no time to end its step")
        for rank, code in known.get("ranks", []):
            if code < 0 and code != -signal.SIGTERM:  # torchrun ends the others by SIGTERM
                name = signal.Signals(-code).name
                return RankKilled(f"rank {rank} was killed by {name} in {self._seen[rank].place}{self.last(rank)}")
        for rank in known.get("gone", []):
            return RankGone(f"rank {rank} is gone with its machine in {self._seen[rank].place}{self.last(rank)}")
        errors = [
            error
            for rank in range(self._trial.world_size)
            if (error := read_object(self.folder / f"error-{rank}.json"))
        ]
        if errors:
            first = min(errors, key=lambda error: float(error["at"]))
            if first["kind"] == "input":
                return InputError(first["reason"])
            words = f"rank {first['rank']}: {first['reason']} (in {self._seen[first['rank']].place})"
            if first["kind"] == TrialStatus.OUT_OF_MEMORY.value:
                return RankOutOfMemory(words, first.get("vram_bytes"), first.get("rss_bytes"))
            return RankFailed(words)
        for rank, code in known.get("ranks", []):
            name = f"signal {-code}" if code < 0 else f"code {code}"
            return RankFailed(f"rank {rank} ended with {name} in {self._seen[rank].place}{self.last(rank)}")
        tail = known.get("torchrun") or " ".join(_tail(self.folder / "torchrun.log")[-1:]) or "it says nothing"
        return RankFailed(f"torchrun ended with code {self._process.returncode}: {tail}")

    def failures(self) -> dict[str, Any]:
        """What torchrun reports of ranks that failed on this machine; empty where none did."""
        if (self._process.poll() or 0) < 0:  # it was killed itself, and its ranks died with it
            return {"ranks": [(rank, -signal.SIGKILL) for rank in self._here]}
        return read_object(self.folder / FAILURES_FILE)

    def last(self, rank: int) -> str:
        """A rank's last log line, to append to a reason."""
        lines = self.log(rank)
        return f"; its last line: {lines[-1][:120]}" if lines else ""

    def log(self, rank: int) -> list[str]:
        """A rank's last lines, of both its streams."""
        places = sorted(self.folder.glob(f"logs/**/{rank}/std*.log"), key=lambda path: path.name, reverse=True)
        return [line for place in places for line in _tail(place)][-LOG_LINES:]

    def _stuck(self) -> str:
        behind = [rank for rank, seen in enumerate(self._seen) if not seen.sign.get("waiting")]
        who = " and ".join(f"rank {rank}" for rank in behind) if behind else "no rank"
        ended = "have not ended" if len(behind) > 1 else "has not ended"
        place = self._seen[behind[0] if behind else 0].place
        return f"{who} {ended} {place} within {self._limits.step_sec:g} s{self.last(behind[0]) if behind else ''}"

    def _end(self) -> None:
        """End torchrun and everything below it, and remove the folder. Raises RankFailed if a process survives."""
        doomed = descendants(self._process.pid) if self._process.poll() is None else []
        doomed += [seen.sign["pid"] for seen in self._seen if "pid" in seen.sign and self._is_rank(seen.sign["pid"])]
        if self._process.poll() is None:
            self._process.kill()
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(GONE_SEC)
        deadline = time.monotonic() + GONE_SEC
        while left := [pid for pid in doomed if _state(pid) not in (None, "Z", "X")]:
            if time.monotonic() > deadline:
                raise RankFailed(f"processes {left} survive SIGKILL: the driver holds them; restart this host")
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_rank(self, pid: int) -> bool:
        # The folder's name is unique, so a reused pid is not mistaken for a rank.
        try:
            return str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


def _on_one_machine(trial: Trial, endpoint: str) -> tuple[str, ...]:
    return (
        *("--nnodes", "1", "--nproc-per-node", str(trial.world_size), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1"),
    )


def _on_several(trial: Trial, machines: NodeList) -> tuple[str, ...]:
    # Static: machine n has the n-th share of the ranks, and no name is looked up.
    here = str(len(machines.ranks_here(trial.world_size)))
    return (
        *("--nnodes", str(machines.count), "--node-rank", str(machines.rank), "--nproc-per-node", here),
        *("--max-restarts", "0", "--rdzv-backend", "static", "--rdzv-conf", f"timeout={int(FIRST_SIGN_SEC)}"),
        *("--master-addr", machines.address, "--master-port", str(machines.port)),
    )


def environment(*, is_alone: bool = True) -> dict[str, str]:
    """The ranks' environment: no name is looked up, no collective waits forever, one thread each unless set."""
    return {
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **({"GLOO_SOCKET_IFNAME": "lo"} if is_alone and sys.platform == "linux" else {}),
        **os.environ,
        "PYTHONUNBUFFERED": "1",
    }


def descendants(root: int) -> list[int]:
    """Every process below `root`, from /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found, ahead = [], [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def die_with(parent: int) -> None:
    """Make SIGKILL end this process when its parent process `parent` dies. Linux alone."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has died already
        os._exit(1)


def _state(pid: int | None) -> str | None:
    """A process's state as Linux writes it (R, S, T, Z, ...); None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _tail(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-LOG_LINES:]


def main(argv: list[str]) -> int:
    """torchrun's own process. `argv`: the pid that it dies with, the folder for its report, torchrun's arguments."""
    die_with(int(argv[0]))
    os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
    from torch.distributed import run  # this module is imported where torch must not be
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(argv[2:]))
    except ChildFailedError as error:
        known: dict[str, Any] = {"ranks": [(rank, failure.exitcode) for rank, failure in error.failures.items()]}
    except Exception as error:  # noqa: BLE001 - `Torchrun.failure` reports it in one line
        known = {"torchrun": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    else:
        return 0
    (Path(argv[1]) / FAILURES_FILE).write_text(json.dumps(known), encoding="utf-8")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
