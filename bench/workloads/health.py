"""The health trial: a burn-in of at most two minutes that a new node must pass.

On every visible GPU it fills the free memory with patterns and reads them back. It multiplies matrices of small whole
numbers, whose product is exact in any order of summation, and compares each element with the result of other units, and
some rows with the CPU's. It measures products and copies, and sums whole numbers over all GPUs (NCCL) or over two
processes (gloo). Meanwhile the sampler watches the driver's error counters and XID events, as in any trial. A wrong
number, a fault and an exchange that does not end are a GpuFault: the trial is LOST with its own cause, and its worker
takes no others.

Without a GPU the same runs on the CPU with small sizes, which shows that the suite works and little about the machine.

Not covered: links between nodes (suite `distributed`); slow clocks and links, which are measured but not judged; memory
that other processes hold; 64-bit units.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench import torch_stack
from bench.data.inputs import Inputs
from bench.harness.record import Record
from bench.harness.termination import GpuFault, StopSignals
from bench.machine import gpu_specs
from bench.qlora.step import Placement, TorchSession, open_session
from bench.records.scratch_folders import scratch_folder
from bench.workloads.hardware import FULL, TINY, HardwareScale, add_copies, float32_precision, matmul_tflops
from bench.workloads.ranks.torchrun import rank_environment

# Each 32-bit word holds its own number and a key; the keys set every bit to 0 and to 1.
KEYS = (0, -1, 0x55555555, -0x55555556)
CHUNK_WORDS = 1 << 26
KEPT_FREE_BYTES = 2 << 30  # for the comparison, and for CUDA's own needs
LARGEST_OPERAND = 2  # sums of 8192 products stay below 2^24, exact in float32
CHECKED_ROWS = 16  # rows whose products the CPU computes, too
EXCHANGE_TIMEOUT_SEC = 60.0
EXCHANGES = 5
MAX_LINE_BYTES = 10_000


@dataclass(frozen=True, kw_only=True)
class HealthScale:
    """Sizes of a profile. `memory_bytes` None: all free memory."""

    memory_bytes: int | None
    memory_sec: float
    size: int
    products_sec: float
    exchanged_words: int
    hardware: HardwareScale


SCALES = {
    "gpu": HealthScale(
        memory_bytes=None, memory_sec=15.0, size=8192, products_sec=30.0, exchanged_words=1 << 26, hardware=FULL
    ),
    "tiny": HealthScale(
        memory_bytes=64 << 20, memory_sec=0.2, size=256, products_sec=0.2, exchanged_words=1 << 16, hardware=TINY
    ),
}


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Add errors, rates and exchanges to the record. Raises GpuFault for a wrong number or a fault of a GPU."""
    del inputs  # it needs no model and no data
    scale = SCALES[record.trial.profile]
    session = open_session(record, stops)
    torch = session.modules.torch
    is_cuda = session.placement.is_cuda
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    devices = devices or [session.placement.device]
    record.steps_planned = 6 * len(devices) + 1
    with record.timed("memory"):
        _check_memory(record, torch, devices, scale)
        if is_cuda:
            torch.cuda.empty_cache()  # the ranks of the exchange are other processes
    stops.check()
    with record.timed("measure"):
        _check_products(record, torch, devices, scale)
        for device in devices:
            _measure_rates(record, session, device, scale, stops)
    with record.timed("exchange"):
        _check_exchange(record, scale, stops, gpus=len(devices) if is_cuda else 0)


def _check_memory(record: Record, torch: Any, devices: Sequence[Any], scale: HealthScale) -> None:
    """Write and read patterns until `memory_sec` have passed, each key at least once. Raises GpuFault."""
    chunks = {device: allocate(torch, device, scale.memory_bytes) for device in devices}
    errors, passes, start = dict.fromkeys(devices, 0), 0, time.monotonic()
    while passes < len(KEYS) or time.monotonic() - start < scale.memory_sec:
        key = KEYS[passes % len(KEYS)]
        for device in devices:  # all are filled before any is read
            fill(torch, chunks[device], key)
        for device in devices:
            errors[device] += count_differences(torch, chunks[device], key)
        passes += 1
    for device in devices:
        size = sum(chunk.numel() * chunk.element_size() for chunk in chunks[device])
        record.add("memory_pattern_errors", errors[device], gpu=_index(device), bytes=size, passes=passes)
    _raise_for(errors, "words of memory differ from what was written")


def allocate(torch: Any, device: Any, size: int | None) -> list[Any]:
    """Allocate int32 chunks of `size` bytes; None: of all free memory but KEPT_FREE_BYTES."""
    if size is None:
        size = max(0, torch.cuda.mem_get_info(device)[0] - KEPT_FREE_BYTES)
    word_count = size // 4
    lengths = [CHUNK_WORDS] * (word_count // CHUNK_WORDS) or [word_count]
    return [torch.empty(length, dtype=torch.int32, device=device) for length in lengths]


def fill(torch: Any, chunks: Sequence[Any], key: int) -> None:
    """Write each word's number over all chunks, combined with the key. Words at one place of two chunks differ."""
    for number, chunk in enumerate(chunks):
        _write_numbers(torch, chunk, number)
        chunk.bitwise_xor_(key)


def count_differences(torch: Any, chunks: Sequence[Any], key: int) -> int:
    """Count the words that differ from what `fill` wrote; changes the chunks."""
    expected = torch.empty_like(chunks[0])
    differing = torch.zeros((), dtype=torch.int64, device=expected.device)
    for number, chunk in enumerate(chunks):
        _write_numbers(torch, expected, number)
        chunk.bitwise_xor_(key)
        differing += torch.count_nonzero(chunk.sub_(expected))
    return int(differing)


def _write_numbers(torch: Any, chunk: Any, number: int) -> None:
    torch.arange(chunk.numel(), dtype=torch.int32, device=chunk.device, out=chunk)
    first = number * CHUNK_WORDS
    chunk.add_((first + (first >> 32) + (1 << 31)) % (1 << 32) - (1 << 31))  # 32 bits hold the numbers of 16 GiB


def _check_products(record: Record, torch: Any, devices: Sequence[Any], scale: HealthScale) -> None:
    """Multiply on all devices at once for `products_sec` and compare each product. Raises GpuFault."""
    reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    try:
        checks = [ProductCheck(torch, device, scale.size) for device in devices]
        products, start = 0, time.monotonic()
        while products == 0 or time.monotonic() - start < scale.products_sec:
            for check in checks:
                check.multiply()
            products += 1
            if products % 8 == 0:  # the queue stays short, so that the time above is the device's
                for check in checks:
                    check.wrong_results()
        errors = {device: check.wrong_results() for device, check in zip(devices, checks, strict=True)}
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced
    for device in devices:
        record.add("matmul_wrong_results", errors[device], gpu=_index(device), size=scale.size, products=products)
    _raise_for(errors, "results of matrix products are wrong")


class ProductCheck:
    """Products of two matrices of small whole numbers on one device, in bf16 and in float32.

    The bf16 product, computed by the tensor cores, is the rounded float32 product, computed by other units.
    """

    def __init__(self, torch: Any, device: Any, size: int) -> None:
        self._torch = torch
        generator = torch.Generator().manual_seed(size)
        numbers = [
            torch.randint(-LARGEST_OPERAND, LARGEST_OPERAND + 1, (size, size), generator=generator, dtype=torch.int8)
            for _ in range(2)
        ]
        self._left, self._right = (matrix.to(device=device, dtype=torch.bfloat16) for matrix in numbers)
        with float32_precision(torch, "highest"):
            exact = self._left.float() @ self._right.float()
        rows = torch.linspace(0, size - 1, CHECKED_ROWS).long()
        reference = numbers[0][rows].double() @ numbers[1].double()
        self._wrong = torch.count_nonzero(exact[rows.to(device)].cpu().double() - reference).to(device)
        self._expected = exact.bfloat16()

    def multiply(self) -> None:
        self._wrong += self._torch.count_nonzero(self._left @ self._right != self._expected)

    def wrong_results(self) -> int:
        """Return the wrong results so far; waits for the device."""
        return int(self._wrong)


def _raise_for(errors: dict[Any, int], problem: str) -> None:
    for device, count in errors.items():
        if count:
            raise GpuFault(f"{device}: {count:,} {problem}")


def _measure_rates(record: Record, session: TorchSession, device: Any, scale: HealthScale, stops: StopSignals) -> None:
    """Add the rate of bf16 products and those of copies, with their share of the chip's figures."""
    torch = session.modules.torch
    chip = gpu_specs.lookup(record.fingerprint["gpu_name"])
    placement = Placement(device=torch.device(device), compute_dtype=session.placement.compute_dtype)
    session = TorchSession(modules=session.modules, placement=placement)
    if placement.is_cuda:
        torch.cuda.set_device(device)
    tflops = matmul_tflops(session, "bf16", scale.size, budget_sec=scale.hardware.budget_sec, operand_bytes=0)
    share = gpu_specs.share_percent(tflops.median, None if chip is None else chip.matmul_tflops("bf16"))
    record.add("matmul_tflops", tflops, share_percent=share, dtype="bf16", size=scale.size, gpu=_index(device))
    add_copies(record, session, chip, scale.hardware, stops, gpu=_index(device))


def _index(device: Any) -> int:
    return device.index or 0


def _check_exchange(record: Record, scale: HealthScale, stops: StopSignals, *, gpus: int) -> None:
    """Sum whole numbers over all GPUs, or over two processes by gloo. Raises GpuFault."""
    backend, ranks = ("nccl", gpus) if gpus > 1 else ("gloo", 2)
    with scratch_folder("qlora-fleet-exchange-") as folder, contextlib.ExitStack() as streams:
        outputs = [streams.enter_context((folder / f"{rank}.out").open("w+b")) for rank in range(ranks)]
        arguments = [sys.executable, "-m", __name__, str(folder), backend]
        processes = [
            subprocess.Popen(
                (*arguments, str(rank), str(ranks), str(scale.exchanged_words)),
                env=rank_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,  # a full pipe would stop a rank that logs much
                stderr=output,
            )
            for rank, output in enumerate(outputs)
        ]
        deadline = time.monotonic() + EXCHANGE_TIMEOUT_SEC
        try:
            while any(process.poll() is None for process in processes):
                stops.check()
                if time.monotonic() > deadline:
                    raise GpuFault(f"the exchange between {ranks} ranks ({backend}) did not end in time")
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        last_lines = [_last_line(output) for output in outputs]
    for rank, (process, line) in enumerate(zip(processes, last_lines, strict=True)):
        if process.returncode != 0:
            reason = line[:200] or f"exit {process.returncode}"
            raise GpuFault(f"the exchange between {ranks} ranks ({backend}) failed in rank {rank}: {reason}")
    answers = [json.loads(line) for line in last_lines]
    size = 4 * scale.exchanged_words
    rate = 2 * (ranks - 1) / ranks * size / answers[0]["seconds"] / 1e9
    record.add("all_reduce_bus_gb_per_sec", rate, backend=backend, ranks=ranks, bytes=size)
    for rank, answer in enumerate(answers):
        if answer["wrong"]:
            wrong = f"{answer['wrong']:,} wrong sums in rank {rank}"
            raise GpuFault(f"the exchange between {ranks} ranks ({backend}): {wrong}")


def _last_line(output: IO[bytes]) -> str:
    """Return the last line that a process wrote; "" without any."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_LINE_BYTES))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def exchange(folder: Path, backend: str, rank: int, ranks: int, word_count: int) -> dict[str, float]:
    """Sum whole numbers over the ranks. Returns the seconds of one sum, and the count of wrong numbers."""
    torch_stack.set_environment()
    torch: Any = importlib.import_module("torch")
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    own = torch.arange(word_count, dtype=torch.int32, device=device)
    wrong, seconds = 0, []
    for number in range(EXCHANGES):
        numbers = own + rank + number
        torch.distributed.barrier()
        start = time.monotonic()
        torch.distributed.all_reduce(numbers)
        first = int(numbers[0])  # waits for the device
        seconds.append(time.monotonic() - start)
        expected = own * ranks + ranks * (ranks - 1) // 2 + ranks * number
        wrong += int(torch.count_nonzero(numbers != expected)) + int(first != int(expected[0]))
    torch.distributed.barrier()
    return {"seconds": min(seconds), "wrong": wrong}


if __name__ == "__main__":
    folder_path, backend_name, *counts = sys.argv[1:]
    print(json.dumps(exchange(Path(folder_path), backend_name, *map(int, counts))), flush=True)
    os._exit(0)  # a communicator's destructor can hang
