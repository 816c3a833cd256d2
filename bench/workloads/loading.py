"""The loading trial: the time from files to a model on the device, and its phases.

The first load finds the page cache as it was (`sysctl vm.drop_caches=3` before it makes that a cold one) and includes
one-time costs of the process: the CUDA context, kernels, lazy imports. Later loads are `warm`, with the files in
memory. All memory is freed between loads; memory that is not freed is reported.

Each phase is measured separately: reading every byte of the files, copying the tensors to the device, quantizing the
layers' weights there. A load overlaps the phases, so they need not add up to its time.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.data.inputs import Inputs
from bench.data.model_folder import weight_files
from bench.harness.record import Record, peak_rss_bytes
from bench.harness.termination import StopSignals
from bench.qlora.base_models import quantized_names
from bench.qlora.step import TorchSession, load_base, open_session
from bench.records.adapter import NF4
from bench.records.bootstrap import Interval, summarize
from bench.torch_stack import free_memory

WARM_REPEATS = 3
CHUNK_BYTES = 16 << 20
# bitsandbytes keeps its code tables, and cuBLAS its workspace, until the process ends.
LEFTOVER_BYTES = 64 << 20
NO_GPU = "no CUDA device"


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """One load. Device bytes are None without a GPU."""

    seconds: float
    device_bytes: int | None
    device_peak_bytes: int | None
    leftover_bytes: int | None


def measure(record: Record, _inputs: Inputs, stops: StopSignals) -> None:
    """Measure one load with the page cache unchanged, three warm; then each phase separately."""
    session = open_session(record, stops)
    files = weight_files(Path(record.trial.model))
    record.steps_planned = 10 if record.trial.base_precision == "nf4" else 9
    bench = Loading(record=record, session=session, files=files, stops=stops)
    record.log(f"{len(files)} weight files, {sum(path.stat().st_size for path in files):,} bytes")
    with record.timed("warmup"):
        first = bench.load()
        bench.add("first_load_time_sec", first.seconds, cache="as found")
    with record.timed("measure"):
        loads = [first, *bench.measure_warm()]
        bench.add_memory(loads)
        bench.measure_phases()


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
        if cuda is not None:
            base = cuda.memory_allocated()
            cuda.reset_peak_memory_stats()
            cuda.synchronize()
        start = time.perf_counter()
        model = load_base(self.session.modules, self.record.trial, self.session.placement)
        self._synchronize()
        seconds = time.perf_counter() - start
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
            leftover_bytes=left,
        )

    def measure_warm(self) -> list[LoadResult]:
        self._read()
        loads = [self.load() for _ in range(WARM_REPEATS)]
        self.add_repeated("load_time_sec", [load.seconds for load in loads], cache="warm")
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
        note = "peak of the whole process, with its imports and pages of mapped files"
        self.add("host_memory_peak_bytes", peak_rss_bytes(), note=note, loads=len(loads))

    # Phases ------------------------------------------------------------------------------------------------------

    def measure_phases(self) -> None:
        """Add the times of reading, moving and quantizing, each measured separately."""
        self.add_repeated("read_time_sec", [self._read() for _ in range(WARM_REPEATS)], cache="warm")
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
        """Read every byte of the files and return the seconds."""
        buffer, start = bytearray(CHUNK_BYTES), time.perf_counter()
        for path in self.files:
            self.stops.check()
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
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

    def _synchronize(self) -> None:
        if self.session.placement.is_cuda:
            self.session.modules.torch.cuda.synchronize()

    def _reserved(self) -> int | None:
        """Bytes that the allocator holds on the device, in use or not."""
        return self.session.modules.torch.cuda.memory_reserved() if self.session.placement.is_cuda else None
