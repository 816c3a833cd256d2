"""The loading trial: the time from files to a model on the device, cold and warm, and its phases.

The first load includes one-time costs of the process: the CUDA context, kernels, lazy imports. Later loads differ only
in the page cache: `cold` after the model's files were verifiably dropped from it, `warm` with the files in memory. All
memory is freed between loads; memory that is not freed is reported.

Each phase is measured separately: reading every byte of the files, copying the tensors to the device, quantizing the
layers' weights there. A load overlaps the phases, so they need not add up to its time.
"""

import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.data.inputs import Inputs
from bench.data.model_folder import weight_files
from bench.harness.record import Record, peak_rss_bytes
from bench.harness.termination import StopSignals
from bench.machine import page_cache
from bench.qlora.base_models import quantized_names
from bench.qlora.step import TorchSession, load_base, open_session
from bench.records.adapter import NF4
from bench.records.bootstrap import Interval, summarize
from bench.records.units import format_percent
from bench.torch_stack import free_memory

WARM_REPEATS = 3
# The check itself and other readers of the folder leave a few pages in the cache.
DROPPED_SHARE = 0.02
# bitsandbytes keeps its code tables, and cuBLAS its workspace, until the process ends.
LEFTOVER_BYTES = 64 << 20
CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
NO_GPU = "no CUDA device"


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """One load. Device bytes are None without a GPU, the host's peak is None if the system does not count it."""

    seconds: float
    device_bytes: int | None
    device_peak_bytes: int | None
    host_peak_bytes: int | None
    leftover_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class CacheDrop:
    """The result of dropping the files from the page cache; `resident_share` is None if unknown."""

    resident_share: float | None

    @property
    def is_refused(self) -> bool:
        return self.resident_share is not None and self.resident_share > DROPPED_SHARE

    @property
    def note(self) -> str | None:
        if self.resident_share is None:
            return "the page cache was asked to drop the files; the effect cannot be verified here"
        if self.is_refused:
            return f"the page cache did not drop the files: {format_percent(self.resident_share)} of their pages stayed"
        return None

    def context(self) -> dict[str, Any]:
        verified = self.resident_share is not None and not self.is_refused
        return {"cache": "cold", "drop_verified": verified, "resident_percent": percent(self.resident_share)}


def measure(record: Record, _inputs: Inputs, stops: StopSignals) -> None:
    """Measure one load with the page cache unchanged, one cold, three warm; then each phase separately."""
    session = open_session(record, stops)
    files = weight_files(Path(record.trial.model))
    record.steps_planned = 12 if record.trial.base_precision == "nf4" else 11
    bench = Loading(record=record, session=session, files=files, stops=stops)
    record.log(f"{len(files)} weight files, {sum(path.stat().st_size for path in files):,} bytes")
    with record.timed("warmup"):
        resident = page_cache.resident_share(files)
        first = bench.load()
        bench.add("first_load_time_sec", first.seconds, cache="as found", resident_percent=percent(resident))
    with record.timed("measure"):
        loads = [first, *bench.measure_cold(), *bench.measure_warm()]
        bench.add_memory(loads)
        bench.measure_phases()


def percent(share: float | None) -> float | None:
    return None if share is None else round(100.0 * share, 1)


def reset_host_peak() -> bool:
    """Reset the peak memory counter (Linux, VmHWM); False if that is not allowed."""
    try:
        CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def host_peak_bytes() -> int | None:
    """Return the peak since `reset_host_peak`. Pages of mapped files count while they are in memory."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


@dataclass(frozen=True, kw_only=True)
class Loading:
    """The measurements of one loading trial."""

    record: Record
    session: TorchSession
    files: tuple[Path, ...]
    stops: StopSignals

    def add(self, name: str, value: float | Interval | None, **more: Any) -> None:
        self.record.add(name, value, precision=self.record.trial.base_precision, **more)

    def add_repeated(self, name: str, values: list[float], **more: Any) -> None:
        self.add(name, summarize(values), **more)

    # Loads -------------------------------------------------------------------------------------------------------

    def load(self) -> LoadResult:
        """Load the model as training does, and free all memory."""
        self.stops.check()
        cuda = self.session.modules.torch.cuda if self.session.placement.is_cuda else None
        free_memory(self.session.modules.torch, is_cuda=self.session.placement.is_cuda)
        before = self._reserved()
        was_reset = reset_host_peak()
        if cuda is not None:
            base = cuda.memory_allocated()
            cuda.reset_peak_memory_stats()
            cuda.synchronize()
        start = time.perf_counter()
        model = load_base(self.session.modules, self.record.trial, self.session.placement)
        self._synchronize()
        seconds = time.perf_counter() - start
        host_peak = host_peak_bytes() if was_reset else None
        allocated_bytes = peak = left = None
        if cuda is not None:
            allocated_bytes, peak = cuda.memory_allocated() - base, cuda.max_memory_allocated() - base
            self.record.peak_vram_bytes = max(self.record.peak_vram_bytes or 0, cuda.max_memory_allocated())
        del model
        free_memory(self.session.modules.torch, is_cuda=self.session.placement.is_cuda)
        if before is not None:
            left = (self._reserved() or 0) - before
        return LoadResult(
            seconds=seconds,
            device_bytes=allocated_bytes,
            device_peak_bytes=peak,
            host_peak_bytes=host_peak,
            leftover_bytes=left,
        )

    def measure_cold(self) -> list[LoadResult]:
        """Load with the files out of memory; if they could not be dropped, add only a note and return no result."""
        drop = self._drop_cache()
        load = None if drop.is_refused else self.load()
        self.add("load_time_sec", None if load is None else load.seconds, note=drop.note, **drop.context())
        return [] if load is None else [load]

    def measure_warm(self) -> list[LoadResult]:
        page_cache.read_all(self.files)
        resident = page_cache.resident_share(self.files)
        loads = [self.load() for _ in range(WARM_REPEATS)]
        seconds = [load.seconds for load in loads]
        self.add_repeated("load_time_sec", seconds, cache="warm", resident_percent=percent(resident))
        return loads

    def add_memory(self, loads: list[LoadResult]) -> None:
        """Add the memory of the last load and the highest peak. Flag memory that was not freed."""
        last = loads[-1]
        total = self.record.fingerprint["gpu_memory_bytes"]
        note = NO_GPU if last.device_bytes is None else None
        share = 100.0 * last.device_bytes / total if last.device_bytes is not None and total else None
        self.add("device_memory_bytes", last.device_bytes, note=note)
        self.add("device_memory_share_percent", share, note=note)
        self.add("device_memory_peak_bytes", last.device_peak_bytes, note=note)
        left = max((load.leftover_bytes for load in loads if load.leftover_bytes is not None), default=None)
        self.add("device_memory_leftover_bytes", left, note=note, loads=len(loads))
        if left is not None and left > LEFTOVER_BYTES:
            self.record.flags.append(f"{left:,} bytes of the GPU's memory were not freed after a load")
        peaks = [load.host_peak_bytes for load in loads if load.host_peak_bytes is not None]
        if peaks:
            self.add("host_memory_peak_bytes", max(peaks), note="pages of mapped files included", loads=len(peaks))
        else:
            note = "peak of the whole process, imports included: the system cannot reset the counter"
            self.add("host_memory_peak_bytes", peak_rss_bytes(), note=note, loads=len(loads))

    # Phases ------------------------------------------------------------------------------------------------------

    def measure_phases(self) -> None:
        """Add the times of reading, moving and quantizing, each measured separately."""
        drop = self._drop_cache()
        self.add("read_time_sec", None if drop.is_refused else self._read(), note=drop.note, **drop.context())
        page_cache.read_all(self.files)
        resident = page_cache.resident_share(self.files)
        warm = [self._read() for _ in range(WARM_REPEATS)]
        self.add_repeated("read_time_sec", warm, cache="warm", resident_percent=percent(resident))
        self._copy_and_quantize(self.files[:1])  # warm-up
        passes = [self._copy_and_quantize(self.files) for _ in range(WARM_REPEATS)]
        free_memory(self.session.modules.torch, is_cuda=self.session.placement.is_cuda)
        if self.session.placement.is_cuda:
            self.add_repeated("move_time_sec", [move for move, _ in passes], source="pageable host memory")
        else:
            self.add("move_time_sec", None, note=NO_GPU)
        if self.record.trial.base_precision == "nf4":
            self.add_repeated("quantize_time_sec", [quantize for _, quantize in passes], device=str(self._device.type))

    @property
    def _device(self) -> Any:
        return self.session.placement.device

    def _read(self) -> float:
        self.stops.check()
        start = time.perf_counter()
        page_cache.read_all(self.files)
        return time.perf_counter() - start

    def _copy_and_quantize(self, files: tuple[Path, ...]) -> tuple[float, float]:
        """Return the seconds of copying all tensors of the files to the device, and of quantizing those in NF4.

        Works file by file: host and device hold one file's tensors at a time.
        """
        moving = quantizing = 0.0
        is_nf4 = self.record.trial.base_precision == NF4
        quantized = quantized_names(self.session.modules, Path(self.record.trial.model)) if is_nf4 else set()
        for path in files:
            self.stops.check()
            tensors = self._tensors(path)
            self._synchronize()
            start = time.perf_counter()
            moved = {name: tensor.to(self._device) for name, tensor in tensors.items()}
            self._synchronize()
            moving += time.perf_counter() - start
            if is_nf4:
                start = time.perf_counter()
                for name in moved.keys() & quantized:
                    moved[name] = self._quantize(moved[name])
                self._synchronize()
                quantizing += time.perf_counter() - start
        return moving, quantizing

    def _tensors(self, path: Path) -> dict[str, Any]:
        """Return copies of the file's tensors: safetensors returns views of the mapped file, not yet read."""
        from safetensors import safe_open  # imports torch

        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping

    @property
    def _quantize(self) -> Any:
        """NF4 quantization as in `bench.qlora.step.load_base`: blocks of 64, block scales quantized again."""
        functional = self.session.modules.bitsandbytes.functional
        return partial(functional.quantize_4bit, blocksize=64, compress_statistics=True, quant_type="nf4")

    # Between -----------------------------------------------------------------------------------------------------

    def _drop_cache(self) -> CacheDrop:
        return CacheDrop(resident_share=page_cache.drop(self.files))

    def _synchronize(self) -> None:
        if self.session.placement.is_cuda:
            self.session.modules.torch.cuda.synchronize()

    def _reserved(self) -> int | None:
        """Bytes that the allocator holds on the device, in use or not."""
        return self.session.modules.torch.cuda.memory_reserved() if self.session.placement.is_cuda else None
