"""The loading trial: the time from files to a model on the device, and the memory that it takes.

The first load finds the page cache as it was (`sysctl vm.drop_caches=3` before it makes that a cold one) and includes
one-time costs of the process: the CUDA context, kernels, lazy imports. Later loads are `warm`, with the files in
memory. All memory is freed between loads; memory that is not freed is reported.
"""

import time
from pathlib import Path
from typing import NamedTuple

from bench.data.inputs import Inputs
from bench.data.model_folder import weight_files
from bench.harness.record import Record, peak_rss_bytes
from bench.harness.termination import StopSignals
from bench.qlora.step import TorchSession, load_base, open_session
from bench.records.bootstrap import summarize
from bench.torch_stack import DeviceClock, free_memory

WARM_REPEATS = 3
# bitsandbytes keeps its code tables, and cuBLAS its workspace, until the process ends.
LEFTOVER_BYTES = 64 << 20


class LoadResult(NamedTuple):
    """One load. Device bytes are None without a GPU."""

    seconds: float
    device_bytes: int | None = None
    device_peak_bytes: int | None = None
    leftover_bytes: int | None = None


def measure(record: Record, _inputs: Inputs, stops: StopSignals) -> None:
    """Measure one load with the page cache unchanged, and three warm."""
    session = open_session(record, stops)
    files = weight_files(Path(record.trial.model))
    record.steps_planned = 7
    record.log(f"{len(files)} weight files, {sum(path.stat().st_size for path in files):,} bytes")
    precision = record.trial.base_precision
    with record.timed("warmup"):
        loads = [load(record, session)]
        record.add("first_load_time_sec", loads[0].seconds, precision=precision, cache="as found")
    with record.timed("measure"):
        for _ in range(WARM_REPEATS):
            stops.check()
            loads.append(load(record, session))
        warm = summarize([each.seconds for each in loads[1:]])
        record.add("load_time_sec", warm, precision=precision, cache="warm")
        add_memory(record, loads)


def load(record: Record, session: TorchSession) -> LoadResult:
    """Load the model as training does, and free all memory."""
    torch, is_cuda = session.modules.torch, session.placement.is_cuda
    free_memory(torch, is_cuda=is_cuda)
    cuda, clock = torch.cuda, DeviceClock(torch, is_cuda=is_cuda)
    if is_cuda:
        reserved, allocated = cuda.memory_reserved(), cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
    clock.synchronize()
    start = time.perf_counter()
    model = load_base(session.modules, record.trial, session.placement)
    clock.synchronize()
    seconds = time.perf_counter() - start
    if not is_cuda:
        return LoadResult(seconds)
    held, peak = cuda.memory_allocated() - allocated, cuda.max_memory_allocated()
    record.peak_vram_bytes = max(record.peak_vram_bytes or 0, peak)
    del model
    free_memory(torch, is_cuda=is_cuda)
    return LoadResult(seconds, held, peak - allocated, cuda.memory_reserved() - reserved)


def add_memory(record: Record, loads: list[LoadResult]) -> None:
    """Add the memory of the last load and the highest peak. Flag memory that was not freed."""
    held, total, precision = loads[-1].device_bytes, record.fingerprint["gpu_memory_bytes"], record.trial.base_precision
    left = max((each.leftover_bytes for each in loads if each.leftover_bytes is not None), default=None)
    values = {
        "device_memory_bytes": held,
        "device_memory_share_percent": 100.0 * held / total if held is not None and total else None,
        "device_memory_peak_bytes": loads[-1].device_peak_bytes,
        "device_memory_leftover_bytes": left,
    }
    for name, value in values.items():
        record.add(name, value, note="no CUDA device" if held is None else None, precision=precision)
    if left is not None and left > LEFTOVER_BYTES:
        record.flags.append(f"{left:,} bytes of the GPU's memory were not freed after a load")
    note = "peak of the whole process, with its imports and pages of mapped files"
    record.add("host_memory_peak_bytes", peak_rss_bytes(), note=note, precision=precision)
