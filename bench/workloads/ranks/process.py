"""The process of one rank: its device, its heartbeat, its reports to the parent, and its failure.

`bench.workloads.ranks.watch` starts it as `python -m MODULE FOLDER BACKEND SILENCE_SEC STEP_SEC`; the module calls
`main` with its class of RankProcess.
"""

import contextlib
import errno
import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from bench import torch_stack
from bench.data.inputs import InputError
from bench.harness import termination
from bench.harness.record import peak_rss_bytes
from bench.machine import fingerprint, preflight
from bench.qlora import recipes
from bench.qlora.step import Placement, choose_placement
from bench.records import Trial
from bench.records.status import Outcome
from bench.workloads.ranks import watch

HEARTBEAT_SEC = 1.0
COLLECTIVE_MARGIN_SEC = 10.0  # collectives time out this much later than the parent, which names the hung rank


class RanksDiffer(RuntimeError):
    """Error for ranks whose weights differ although they should be equal."""


class RankGroup:
    """The collectives of a rank: gradients over the backend, everything else over the CPU (`cpu_group`)."""

    def __init__(self, torch: Any, rank: int = 0, world_size: int = 1, cpu_group: Any = None) -> None:
        self.torch, self.rank, self.world_size, self._cpu_group = torch, rank, world_size, cpu_group

    @property
    def is_single(self) -> bool:
        return self.world_size == 1

    def all_reduce_async(self, tensor: Any) -> Any:
        """Start summing `tensor` over all ranks, in place; call `wait()` on the result. None for a single rank."""
        return None if self.is_single else self.torch.distributed.all_reduce(tensor, async_op=True)

    def gather_objects(self, mine: Any) -> list[Any]:
        """Return every rank's object, in order."""
        if self.is_single:
            return [mine]
        gathered: list[Any] = [None] * self.world_size
        self.torch.distributed.all_gather_object(gathered, mine, group=self._cpu_group)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's object on every rank."""
        if self.is_single:
            return value
        box = [value]
        self.torch.distributed.broadcast_object_list(box, src=0, group=self._cpu_group)
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if not self.is_single:
            self.torch.distributed.barrier(group=self._cpu_group)

    def check_equal(self, digest: str, name: str) -> None:
        """Raise RanksDiffer if another rank has another digest of `name`."""
        for rank, other in enumerate(self.gather_objects(digest)):
            if other != digest:
                raise RanksDiffer(f"rank {rank} has {name} {other[:12]}, rank {self.rank} has {digest[:12]}")


class Heartbeat:
    """This rank's position, written for the parent by a thread every second, and immediately on each change."""

    def __init__(self, folder: Path, rank: int, every_sec: float) -> None:
        self._path, self._part = folder / f"rank-{rank}.json", folder / f".rank-{rank}.part"
        self._position: dict[str, Any] = {"phase": "import", "step": 0, "waiting": False, "moves": 0}
        self._count = itertools.count(1)
        self._every_sec = every_sec
        self._lock = threading.Lock()
        self._write()
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def update(self, phase: str, step: int = 0, *, waiting: bool = False) -> None:
        """Set this rank's position; `waiting`: it waits for the other ranks."""
        self._position = {"phase": phase, "step": step, "waiting": waiting, "moves": self._position["moves"] + 1}
        self._write()

    @property
    def phase(self) -> str:
        return str(self._position["phase"])

    def _write(self) -> None:
        with self._lock:
            self._part.write_text(json.dumps({"pid": os.getpid(), "count": next(self._count), **self._position}))
            os.replace(self._part, self._path)

    def _beat(self) -> None:
        while self._path.parent.is_dir():  # the folder is removed when the trial ends
            time.sleep(self._every_sec)
            # Ignore a full disk here: the next step reports it.
            with contextlib.suppress(OSError):
                self._write()


class LineWriter:
    """A writer of rank 0's reports to the parent, one JSON object per line; on other ranks it does nothing."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / watch.LINES_FILE).open("ab", buffering=0) if rank == 0 else None

    def __call__(self, **line: Any) -> None:
        content = json.dumps(line).encode() + b"\n"
        if self._file is not None and self._file.write(content) != len(content):
            self._file = None  # a later line would continue this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), watch.LINES_FILE)


class RankProcess:
    """One rank of any kind of trial: its device, heartbeat and reports."""

    modules: torch_stack.Stack
    placement: Placement

    def __init__(self, folder: Path, backend: str, silence_sec: float, step_sec: float) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.folder, self.backend, self.step_sec = folder, backend, step_sec
        self.heartbeat = Heartbeat(folder, self.rank, min(HEARTBEAT_SEC, silence_sec / 5))
        self.report = LineWriter(folder, self.rank)
        self.trial = Trial.read(folder / watch.TRIAL_FILE)
        if backend == "nccl":
            # One visible GPU, as device 0 like in all trials, before torch is imported.
            visible, number = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["LOCAL_RANK"]
            os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(number)].strip() if visible else number

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report the beginning of a phase, and its seconds when it ends or fails."""
        self.heartbeat.update(name)
        self.report(phase=name)
        start = time.monotonic()
        try:
            yield
        finally:
            self.report(phase=name, phase_sec=time.monotonic() - start)

    def select_device(self) -> None:
        """Choose this rank's device and report it. Raises the errors of the stack and of preflight."""
        preflight.check(self.modules, self.trial)
        self.placement = choose_placement(self.modules)
        dtype = str(self.placement.compute_dtype).removeprefix("torch.")
        facts = {**fingerprint.device_facts(self.modules.torch), "compute_dtype": dtype, "backend": self.backend}
        self.report(fingerprint=facts)

    def init_process_group(self, step_sec: float) -> RankGroup:
        """Connect the ranks: over the backend, where a collective may take `step_sec`, and over the CPU.

        Raises InputError if their GPUs differ.
        """
        distributed = self.modules.torch.distributed
        distributed.init_process_group(
            self.backend,
            init_method=os.environ[watch.RENDEZVOUS_VARIABLE],
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=step_sec + COLLECTIVE_MARGIN_SEC),
        )
        # What is exchanged over the CPU is apart from the measured traffic, as is the wait for loading.
        cpu_group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=self.trial.deadline_sec))
        group = RankGroup(self.modules.torch, self.rank, self.world_size, cpu_group)
        check_gpus(group.gather_objects(fingerprint.device_facts(self.modules.torch)["gpu_name"]))
        return group

    def destroy_process_group(self) -> None:
        # gloo's threads end with the process (see `exit_now`): destroying its groups once aborted a rank whose peer
        # had just exited ("terminate called without an active exception"), after all measurements.
        if self.backend != "gloo" and self.modules.torch.distributed.is_initialized():
            self.modules.torch.distributed.destroy_process_group()

    def build_step(self) -> Any:
        """Load the trial's model and build the recipe's step over it."""
        step = recipes.load(self.modules, self.trial, self.placement)
        self.report(load_time_sec=step.load_sec)
        return step

    def report_step(self, step: Any, log: str) -> None:
        """Report the built step's facts and flags, and a line of the log."""
        self.report(fingerprint=step.facts(), log=log)
        for flag in step.flags:
            self.report(flag=flag)

    def report_peaks(self, group: RankGroup) -> None:
        """Report the highest peaks of memory of all ranks."""
        vram, rss = zip(*group.gather_objects((peak_vram_bytes() or 0, peak_rss_bytes())), strict=True)
        self.report(peaks={"vram_bytes": max(vram) or None, "rss_bytes": max(rss)})


def check_gpus(names: Sequence[str | None]) -> None:
    """Raise InputError if the ranks' GPUs differ: the slowest sets the speed, and bits depend on the kind."""
    if len(set(names)) > 1:
        listed = ", ".join(f"rank {rank}: {name or 'none'}" for rank, name in enumerate(names))
        raise InputError(
            f"the ranks have different GPUs ({listed})",
            remedy="name one kind in cluster.gpu, or on one machine its GPUs in CUDA_VISIBLE_DEVICES",
        )


def peak_vram_bytes() -> int | None:
    """Return this process's peak GPU memory; None if it did not use CUDA."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.max_memory_allocated()) if torch is not None and torch.cuda.is_initialized() else None


def main(argv: list[str], rank_class: Callable[[Path, str, float, float], Any]) -> NoReturn:
    """Run one rank of the class `rank_class`; write a failure to its error file, for the parent to report."""
    faulthandler.register(signal.SIGUSR1, file=2)  # `kill -USR1 PID` writes every thread's stack into the log
    watch.exit_with_parent(int(os.environ[watch.LAUNCHER_VARIABLE]))
    folder, backend, silence_sec, step_sec = Path(argv[0]), argv[1], float(argv[2]), float(argv[3])
    rank = int(os.environ["RANK"])
    try:
        rank_class(folder, backend, silence_sec, step_sec).run()
    except Exception as error:  # noqa: BLE001 - the parent reports it with this rank's number
        if isinstance(error, InputError):
            outcome = Outcome.of(error.reason_code, str(error))
        else:
            outcome = termination.classify_error(error)
        cause = {"reason_code": outcome.reason_code, "reason": outcome.reason, "remedy": outcome.remedy}
        peaks = {"vram_bytes": peak_vram_bytes(), "rss_bytes": peak_rss_bytes()}
        failure = {"rank": rank, **cause, "at": time.monotonic(), **peaks}
        traceback.print_exc()
        (folder / f"error-{rank}.json").write_text(json.dumps(failure), encoding="utf-8")
        exit_now(1)
    exit_now(0)


def exit_now(code: int) -> NoReturn:
    """End this process without destructors: a communicator's destructor can hang or abort if its peer is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
