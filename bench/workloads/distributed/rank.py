"""What each rank of a distributed trial runs: the training trial's step under DDP, with and without communication.

`python -m bench.workloads.distributed.rank FOLDER BACKEND SILENCE_SEC STEP_SEC`, started by torchrun. Each rank trains on
every n-th chat, in an order set by the seed; base weights are the same files on every rank, so only adapters and their
gradients are exchanged.

After steps without communication the ranks' weights would differ. These steps have an optimizer of their own, and the
weights are restored after every block of them, so that the trial trains one model; that is checked at the end.

Not covered: sharded models.
"""

import contextlib
import copy
import dataclasses
import hashlib
import itertools
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from bench import torch_stack
from bench.data.collate import Batch, load_tokenizer, make_batches, make_rows
from bench.data.conversations import read_data
from bench.data.inputs import InputError
from bench.harness import termination
from bench.harness.record import peak_rss_bytes
from bench.machine import fingerprint, preflight
from bench.qlora import recipes
from bench.qlora.step import Placement, load_base, make_optimizer, place
from bench.records import Trial
from bench.workloads.distributed import efficiency, torchrun
from bench.workloads.distributed.buckets import BucketClock

SIGN_SEC = 1.0
BACKSTOP_SEC = 10.0  # a collective's own limit is this much later than the one that names the rank
HOOKED_STEPS = {"gpu": 10, "tiny": 3}
REDUCE_MIB = {"gpu": (1.0, 16.0, 64.0, 256.0), "tiny": (0.25, 4.0)}
REDUCE_WARMUP, REDUCE_REPEATS = 3, {"gpu": 20, "tiny": 8}
ROTATED_BYTES = 256 << 20  # more than any chip's caches, so that no buffer is still cached


class RanksDiffer(RuntimeError):
    """Ranks that should hold one model hold several."""


class Heartbeat:
    """This rank's place, for the parent: written by a thread every second, and at once when it changes."""

    def __init__(self, folder: Path, rank: int, every_sec: float) -> None:
        self._path, self._part = folder / f"rank-{rank}.json", folder / f".rank-{rank}.part"
        self._place: dict[str, Any] = {"phase": "import", "step": 0, "waiting": False, "moves": 0}
        self._count = itertools.count(1)
        self._every_sec = every_sec
        self._lock = threading.Lock()
        self._write()
        threading.Thread(target=self._beat, daemon=True, name="signs").start()

    def move(self, phase: str, step: int = 0, *, waiting: bool = False) -> None:
        """Set this rank's place; `waiting`: for the other ranks."""
        self._place = {"phase": phase, "step": step, "waiting": waiting, "moves": self._place["moves"] + 1}
        self._write()

    @property
    def phase(self) -> str:
        return str(self._place["phase"])

    def _write(self) -> None:
        with self._lock:
            self._part.write_text(json.dumps({"pid": os.getpid(), "count": next(self._count), **self._place}))
            os.replace(self._part, self._path)

    def _beat(self) -> None:
        while self._path.parent.is_dir():  # else the trial has ended
            time.sleep(self._every_sec)
            # The next step reports a full disk.
            with contextlib.suppress(OSError):
                self._write()


class LineReader:
    """What rank 0 reports to the parent, one JSON object a line; the other ranks report nothing."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / torchrun.LINES_FILE).open("ab", buffering=0) if rank == 0 else None

    def __call__(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line).encode() + b"\n")


class AllReduceBuckets:
    """The DDP model as a step calls it: it exchanges gradients in every `every`-th call, a step's last; never for 0."""

    def __init__(self, ddp: Any, every: int) -> None:
        self._ddp, self._every, self._calls = ddp, every, 0

    def parameters(self) -> Iterator[Any]:
        yield from self._ddp.parameters()

    def __call__(self, **inputs: Any) -> Any:
        self._calls += 1
        # What DDP.no_sync() sets; it holds for this call's backward pass too.
        self._ddp.require_backward_grad_sync = self._every > 0 and self._calls % self._every == 0
        return self._ddp(**inputs)


class OneRank:
    """What one rank of any kind of trial is and tells."""

    modules: torch_stack.Stack
    placement: Placement

    def __init__(self, folder: Path, backend: str, silence_sec: float, step_sec: float) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.folder, self.backend, self.step_sec = folder, backend, step_sec
        self.signs = Heartbeat(folder, self.rank, min(SIGN_SEC, silence_sec / 5))
        self.lines = LineReader(folder, self.rank)
        self.trial = Trial.read(folder / torchrun.TRIAL_FILE)
        if backend == "nccl":
            choose_gpu(int(os.environ["LOCAL_RANK"]))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Tell that a phase begins, and its seconds, however it ends."""
        self.signs.move(name)
        self.lines(phase=name)
        start = time.monotonic()
        try:
            yield
        finally:
            self.lines(phase=name, phase_sec=time.monotonic() - start)

    def take_device(self) -> None:
        """Take this rank's device, and tell which it is. Raises what the stack and preflight raise."""
        preflight.check(self.modules, self.trial)
        self.placement = place(self.modules)
        arithmetic = str(self.placement.compute_dtype).removeprefix("torch.")
        facts = {**fingerprint.device_facts(self.modules.torch), "compute_dtype": arithmetic, "backend": self.backend}
        self.lines(fingerprint=facts)

    def load(self) -> Any:
        """The recipe's step over the trial's model."""
        start = time.monotonic()
        base = load_base(self.modules, self.trial, self.placement)
        if self.placement.is_cuda:
            self.modules.torch.cuda.synchronize()
        self.lines(load_time_sec=time.monotonic() - start)
        return recipes.build(self.trial.recipe, self.modules, self.trial, self.placement, base)

    def tell_step(self, step: Any, *, trained: int, gradient_bytes: int, **line: Any) -> None:
        """Tell what `load` has built: its facts, `line`, its flags."""
        facts = {
            "recipe": step.recipe,
            "recipe_notes": ", ".join(step.notes) or None,
            "optimizer": step.optimizer_name,
            "trained_parameters": trained,
            "gradient_bytes": gradient_bytes,
        }
        self.lines(fingerprint=facts, **line)
        for flag in step.flags:
            self.lines(flag=flag)


class DistributedRank(OneRank):
    """One rank, from its model to its last all-reduce."""

    def work(self) -> None:
        """Run the trial. Raises what the stack raises, NotFinite, RanksDiffer and InputError."""
        with self.phase("import"):
            self.modules = torch_stack.load()
            self.torch = self.modules.torch
            self.take_device()
            self._join()
        with self.phase("data"):
            self._open_data()
        with self.phase("load"):
            self._load()
            self.exchange([0.0])  # ranks load at different speeds: wait here and not inside a step
        trial = self.trial
        with self.phase("warmup"):
            for number in range(1, trial.warmup_steps + 1):
                self._step("warmup", number)
            if self.world_size > 1:
                self._alone([1], kind="off-warmup")  # allocates what such steps need
        with self.phase("measure"):
            size, number = efficiency.block_steps(trial.measured_steps), 0
            for block, start in enumerate(range(0, trial.measured_steps, size)):
                steps = range(start, min(start + size, trial.measured_steps))
                for number in (step + 1 for step in steps):
                    self._step("on", number, block=block)
                if self.world_size > 1:
                    self._alone([step + 1 for step in steps], block)
        with self.phase("exchange"):
            if self.world_size > 1:
                self._hooked()
            self._compare_weights()
            self._peaks()
            if self.world_size > 1:
                self._all_reduce()
        # gloo's threads end with the process (see `leave`): destroying its groups was seen to abort a rank whose peer
        # had just left ("terminate called without an active exception"), after everything was measured.
        if self.backend != "gloo":
            self.modules.torch.distributed.destroy_process_group()

    # Getting there ----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        distributed = self.torch.distributed
        limit = timedelta(seconds=self.step_sec + BACKSTOP_SEC)
        distributed.init_process_group(self.backend, timeout=limit)
        # Times and losses are exchanged over the CPU, apart from what is measured; so is the wait for the slowest load.
        self.side = distributed.new_group(backend="gloo", timeout=timedelta(seconds=self.trial.deadline_sec))

    def _open_data(self) -> None:
        trial, (_, conversations) = self.trial, read_data(Path(self.trial.data))
        tokenizer = load_tokenizer(self.modules, trial.model)
        rows = make_rows(trial, conversations[self.rank :: self.world_size], tokenizer)
        # Steps with and without exchange, the hooked ones and one unmeasured; a longer trial repeats its rows.
        more = min(100_000, 2 * trial.measured_steps + HOOKED_STEPS[trial.profile] + 1)
        longer = dataclasses.replace(trial, measured_steps=more)
        pinned = self.placement.is_cuda
        passes = (make_batches(self.modules, longer, rows, tokenizer, pin_memory=pinned) for _ in itertools.count())
        self.batches = itertools.chain.from_iterable(passes)

    def _load(self) -> None:
        trial, torch = self.trial, self.torch
        step = self.load()
        model = step.model
        torch.manual_seed(trial.seed + self.rank)  # equal adapters, different dropout
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in self.trained)
        count = sum(parameter.numel() for parameter in self.trained)
        said = f"rank 0 loaded the model; {count:,} trained parameters, {self.gradient_bytes:,} bytes of gradients"
        self.tell_step(step, trained=count, gradient_bytes=self.gradient_bytes, log=said)
        parallel = torch.nn.parallel.DistributedDataParallel
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        # The frozen weights come from the same files on every rank: no need to broadcast 4 GB of them.
        parallel._set_params_and_buffers_to_ignore_for_model(
            model, frozen + [name for name, _ in model.named_buffers()]
        )
        # Not static_graph: it does not support steps without exchange, and checkpointing here does not need it.
        self.ddp = parallel(model, broadcast_buffers=False, find_unused_parameters=False, gradient_as_bucket_view=True)
        step.may_capture = False  # DDP exchanges gradients while backward runs
        self.together, self.apart = step, copy.copy(step)
        self.together.model = AllReduceBuckets(self.ddp, trial.gradient_accumulation_steps)
        self.apart.model = AllReduceBuckets(self.ddp, 0)
        self.apart.optimizer, _ = make_optimizer(self.modules, trial, model, self.placement)

    # Steps ------------------------------------------------------------------------------------------------------------

    def _step(self, kind: str, number: int, *, block: int = 0, spans: Any = None) -> None:
        """One step, timed from a moment at which every rank is ready; its line holds every rank's row."""
        step = self.apart if kind.startswith("off") else self.together
        used: list[Batch] = []

        def drawn() -> Iterator[Batch]:
            for batch in itertools.islice(self.batches, self.trial.gradient_accumulation_steps):
                used.append(batch)
                yield batch

        step.wait()
        self.signs.move(self.signs.phase, number, waiting=True)
        self.torch.distributed.barrier(group=self.side)
        self.signs.move(self.signs.phase, number)
        start = time.perf_counter()
        total = step(drawn(), self.trial.gradient_accumulation_steps)
        step.wait()
        seconds = time.perf_counter() - start
        self.signs.move(self.signs.phase, number, waiting=True)
        communication = math.nan if spans is None else efficiency.covered(spans())
        counts = [sum(b.samples for b in used), sum(b.tokens for b in used), sum(b.useful_tokens for b in used)]
        table = self.exchange([seconds, float(total), *counts, communication])
        self.lines(step={"kind": kind, "block": block, "table": table})
        for rank, row in enumerate(table):
            if not math.isfinite(row[1]):
                raise termination.NonFiniteLoss(
                    f"the loss of rank {rank} is {row[1]} at {self.signs.phase} step {number}"
                )

    def _alone(self, numbers: list[int], block: int = 0, kind: str = "off") -> None:
        """A block without communication, after which the weights are restored."""
        kept = [parameter.detach().clone() for parameter in self.trained]
        for number in numbers:
            self._step(kind, number, block=block)
        with self.torch.no_grad():
            for parameter, value in zip(self.trained, kept, strict=True):
                parameter.copy_(value)

    def _hooked(self) -> None:
        """Steps whose buckets are timed one by one, after those that count: DDP's own exchange has no clock."""
        clock = BucketClock(self.torch, self.world_size, on_cuda=self.placement.is_cuda)
        self.ddp.register_comm_hook(None, clock.hook)
        for number in range(1, HOOKED_STEPS[self.trial.profile] + 1):
            clock.begin()
            self._step("hooked", number, spans=clock.spans)
        self.lines(buckets=clock.buckets)

    # Between ranks ----------------------------------------------------------------------------------------------------

    def exchange(self, row: list[float]) -> list[list[float]]:
        """Every rank's row, in order; waits for all ranks, on the CPU."""
        mine = self.torch.tensor(row, dtype=self.torch.float64)
        rows = [self.torch.empty_like(mine) for _ in range(self.world_size)]
        self.torch.distributed.all_gather(rows, mine, group=self.side)
        return [list(map(float, other)) for other in rows]

    def _compare_weights(self) -> None:
        digest = hashlib.sha256()
        for parameter in self.trained:
            digest.update(parameter.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes())
        all_digests = [bytes(map(int, row)).hex() for row in self.exchange(list(map(float, digest.digest())))]
        for rank, other in enumerate(all_digests):
            if other != all_digests[0]:
                raise RanksDiffer(
                    f"after the same steps rank {rank} holds other weights than rank 0: {other[:12]}, not "
                    f"{all_digests[0][:12]}"
                )
        self.lines(fingerprint={"lora_weights_sha256": all_digests[0]})

    def _all_reduce(self) -> None:
        """Seconds of each all-reduce of random float32 data, the slowest rank's, at several sizes."""
        profile = self.trial.profile
        sizes = [int(mib * (1 << 20)) for mib in REDUCE_MIB[profile]]
        for size in sorted({*sizes, self.gradient_bytes}):
            self.signs.move(f"all-reduce of {size} bytes")
            count = max(2, min(16, ROTATED_BYTES // size)) if self.placement.is_cuda else 2
            # Small numbers, because the sums grow with every round and must stay finite.
            buffers = [self.torch.randn(size // 4, device=self.placement.device).mul_(1e-18) for _ in range(count)]
            repeats = REDUCE_WARMUP + REDUCE_REPEATS[profile]
            mine = [self._timed_reduce(buffers[number % count]) for number in range(repeats)]
            slowest = [max(times) for times in zip(*self.exchange(mine), strict=True)]
            self.lines(all_reduce={"bytes": size // 4 * 4, "sec": slowest[REDUCE_WARMUP:]})

    def _timed_reduce(self, buffer: Any) -> float:
        torch = self.torch
        if not self.placement.is_cuda:
            torch.distributed.barrier(group=self.side)
            start = time.perf_counter()
            torch.distributed.all_reduce(buffer)
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.distributed.barrier(group=self.side)
        begin.record()
        torch.distributed.all_reduce(buffer)  # the current stream, and so the second event, waits for it
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000.0

    def _peaks(self) -> None:
        rows = self.exchange([float(peak_vram_bytes() or 0), float(peak_rss_bytes())])
        self.lines(peaks={"vram_bytes": [row[0] for row in rows], "rss_bytes": [row[1] for row in rows]})


def choose_gpu(local_rank: int) -> None:
    """Make one GPU visible, which is then device 0 as in every trial. Must run before torch is imported."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local_rank].strip() if visible else str(local_rank)


def peak_vram_bytes() -> int | None:
    """The peak of this process's GPU memory; None where it has used none."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.max_memory_allocated()) if torch is not None and torch.cuda.is_initialized() else None


def main(argv: list[str], make: Callable[[Path, str, float, float], Any] = DistributedRank) -> NoReturn:
    """Run one rank, as `make` makes it; a failure goes to its error file, for the parent to report."""
    torchrun.die_with(int(os.environ[torchrun.LAUNCHER_VARIABLE]))
    folder, backend, silence_sec, step_sec = Path(argv[0]), argv[1], float(argv[2]), float(argv[3])
    rank = int(os.environ["RANK"])
    try:
        make(folder, backend, silence_sec, step_sec).work()
    except Exception as error:  # noqa: BLE001 - the parent reports it with this rank's number
        if isinstance(error, InputError):
            kind, reason = "input", str(error)
        else:
            end, reason = termination.end_of(error)
            kind = end.value
        peaks = {"vram_bytes": peak_vram_bytes(), "rss_bytes": peak_rss_bytes()}
        failure = {"rank": rank, "kind": kind, "reason": reason, "at": time.monotonic(), **peaks}
        traceback.print_exc()
        (folder / f"error-{rank}.json").write_text(json.dumps(failure), encoding="utf-8")
        leave(1)
    leave(0)


def leave(code: int) -> NoReturn:
    """End this process without destructors: that of a communicator whose peer is gone can hang for minutes or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
