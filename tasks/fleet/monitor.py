"""`inv monitor`: a live table of the workers' GPUs, one row each, until Ctrl-C.

It is read-only, and works before, during and after a run, also without the run's operator. Each sample is a command on
the worker (`python -m bench sample`, a tenth of a second of one core), so unreachable workers are shown, too. A
trial's full GPU history is in its telemetry.csv.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from invoke.context import Context
from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import RunRecord
from bench.records.units import format_gib
from remote.fleet.outcome import PROGRESS_PATH
from remote.hosts.host_protocol import Host, HostError
from remote.jobs.job import Agent, Job, slot_path
from tasks.cli import terminal
from tasks.cli.command_result import CommandResult
from tasks.clients import workers
from tasks.errors import RetryableError, escape_controls
from tasks.fleet.run_store import TRAIN, open_run
from tasks.fleet.training_job import TrainingJob, open_job, read_state
from tasks.fleet.training_progress import TrainingLine
from tasks.settings.layers import Settings, load

REFRESH_SEC = 2.0
COLUMNS = ("worker", "GPU", "busy", "memory", "power", "SM clock", "temp", "trial", "phase")
NUMERIC_COLUMNS = ("busy", "memory", "power", "SM clock", "temp")
DROP_ORDER = ("SM clock", "temp", "power", "memory", "GPU", "busy")
UNKNOWN = "-"


@dataclass(frozen=True, kw_only=True)
class WorkerSample:
    """One sample of a worker. `gpus` is the output of `python -m bench sample`; `error` is set if the worker failed.

    `job` is the folder of the job that holds it. `training` is the progress line of the training that it leads.
    """

    worker: str
    gpus: Sequence[Mapping[str, Any]] = ()
    load_average_1min: float | None = None
    trial: str | None = None
    phase: str | None = None
    job: str | None = None
    training: str | None = None
    error: str | None = None


def show_workers(context: Context, name: str | None, *, once: bool, plain: bool) -> CommandResult:
    """Show the workers, those of the run of this name, or the pods of its training, once or until Ctrl-C."""
    settings = load(context)
    run = None if name is None else open_run(settings, name)[0]
    is_followed = run is not None and run.suite == TRAIN
    end = None
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(open_job(settings, run)) if run is not None and is_followed else None
        agents = {host.name: Agent(host) for host in _hosts(settings, run, job)}
        lines = TrainingLines(settings, run if is_followed else None)

        def sample_by_name(worker: str) -> WorkerSample:
            return lines.add_to(sample_worker(agents[worker], partial(workers.sample, settings)), agents[worker].host)

        poller = WorkerPoller(list(agents), sample_by_name)
        console = terminal.console(soft_wrap=False)
        find_end = partial(_describe_end, run, job) if run is not None and job is not None else lambda: None
        try:
            end = _follow(console, poller, find_end, once=once, plain=plain)
        except KeyboardInterrupt:  # the normal end
            pass
        finally:
            poller.close()
    if end is not None:
        console.print(end, markup=False, soft_wrap=True)
    return CommandResult(
        data={"workers": [asdict(sample) for sample in poller.samples], "end": end},
        failure=find_unreachable(poller.samples) if once and end is None else None,
    )


def _hosts(settings: Settings, run: RunRecord | None, job: TrainingJob | None) -> Sequence[Host]:
    """Return the hosts of a training's job, or the run's workers; without a run, the fleet."""
    if run is None:
        return workers.fleet_hosts(settings)
    return workers.run_hosts(settings, run) if job is None else job.hosts


def _describe_end(run: RunRecord, job: TrainingJob) -> str | None:
    """Return one line on the end of a training whose job has ended; None while it goes on."""
    end = job.end()
    return (
        None if end is None else f"run {run.run_id}: {end.text}; `inv collect --run={run.run_id}` fetches its results"
    )


class TrainingLines:
    """The lines of the trainings that run on workers: of the training `followed`, or of those known on this machine."""

    def __init__(self, settings: Settings, followed: RunRecord | None) -> None:
        self._settings, self._followed = settings, followed
        self._lines = dict[str, TrainingLine]()

    def add_to(self, sample: WorkerSample, host: Host) -> WorkerSample:
        """Add the state of the training that runs on this worker to its sample."""
        run = self._followed or self._find_run(sample.job)
        if sample.error is not None or run is None:
            return sample
        try:
            state = read_state(run, host)
        except HostError as error:
            return replace(sample, error=escape_controls(str(error)))
        line = self._lines.setdefault(run.run_id, TrainingLine(self._settings, run)).text(state)
        return replace(
            sample,
            trial=run.planned[0].trial_id,
            phase="starting" if state.progress is None else phase_text(vars(state.progress)),
            training=line if host.name == run.workers[0] else None,
        )

    def _find_run(self, job: str | None) -> RunRecord | None:
        """Return the training of a job's folder; None if this machine does not know it."""
        try:
            folder = self._settings.results_folder / PurePosixPath(job or "").parent.name
            run = RunRecord.read(folder / RUN_FILE)
        except ResultError:
            return None
        return run if run.suite == TRAIN else None


def sample_worker(agent: Agent, sample: Callable[[Host], Mapping[str, Any]]) -> WorkerSample:
    """Sample one worker; if it does not answer, the sample has an `error`."""
    worker = agent.host.name
    try:
        measurement = sample(agent.host)
        holder = agent.holder(slot_path(agent.host))
        progress = None
        if holder is not None:
            progress = Job(agent, holder).watch(lambda _: None, progress=PROGRESS_PATH, duration_sec=0.0).progress
    except HostError as error:
        return WorkerSample(worker=worker, error=str(error).removeprefix(f"{worker}: "))
    try:
        worker_sample = WorkerSample(
            worker=worker,
            gpus=measurement["gpus"],
            load_average_1min=measurement["load_average_1min"],
            trial=None if holder is None else PurePosixPath(holder).name.rpartition(".")[0],  # without the attempt
            phase=None if progress is None else phase_text(progress),
            job=holder,
        )
        rows([worker_sample])
    except (KeyError, TypeError, ValueError, AttributeError):
        return WorkerSample(
            worker=worker, error="its bench sent an unreadable sample; does its image have another version?"
        )
    return worker_sample


def phase_text(progress: Mapping[str, Any]) -> str:
    return f"{progress.get('phase', UNKNOWN)} {progress.get('step', 0)}/{progress.get('steps', 0)}"


def find_unreachable(samples: Sequence[WorkerSample]) -> RetryableError | None:
    """Return an error if a worker did not answer: a script must not take that for a healthy fleet."""
    unreachable = [sample for sample in samples if sample.error is not None]
    if not unreachable:
        return None
    first = f"{unreachable[0].worker}: {unreachable[0].error}"
    count = f"{len(unreachable)} of {len(samples)} workers did not answer"
    return RetryableError(f"{count}: {first}", remedy="fix that, then rerun `inv monitor --once`")


class WorkerPoller:
    """Samples workers in parallel and keeps the latest sample of each. A slow worker does not delay the others."""

    def __init__(self, workers: Sequence[str], sample: Callable[[str], WorkerSample]) -> None:
        self._sample = sample
        self._pool = ThreadPoolExecutor(max_workers=min(64, len(workers)))
        self._pending: dict[str, Future[WorkerSample]] = {}
        self._last = {worker: WorkerSample(worker=worker, error="no answer yet") for worker in workers}

    def poll(self, *, timeout_sec: float | None) -> list[WorkerSample]:
        """Query all workers without a pending query, wait up to `timeout_sec`, and return each one's latest sample.

        None waits for all of them.
        """
        for worker in self._last:
            if worker not in self._pending:
                self._pending[worker] = self._pool.submit(self._sample, worker)
        done, _ = wait(self._pending.values(), timeout=timeout_sec)
        for worker, future in list(self._pending.items()):
            if future in done:
                self._last[worker] = future.result()
                del self._pending[worker]
        return self.samples

    @property
    def samples(self) -> list[WorkerSample]:
        """The latest sample of each worker."""
        return list(self._last.values())

    def close(self) -> None:
        """Stop sampling; a pending query ends at its own deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _follow(
    console: Console, poller: WorkerPoller, find_end: Callable[[], str | None], *, once: bool, plain: bool
) -> str | None:
    """Show the samples of all workers once, or every REFRESH_SEC until a training has ended; return its end."""
    is_table = once or (console.is_terminal and not plain)
    with Live(console=console, auto_refresh=False) if is_table and not once else contextlib.nullcontext() as live:
        while True:
            started = time.monotonic()
            samples = poller.poll(timeout_sec=None if once else REFRESH_SEC)
            if all(sample.error is not None for sample in samples) and (end := find_end()) is not None:
                return end
            if live is not None:
                live.update(render(samples, console.width), refresh=True)
            elif is_table:
                console.print(render(samples, console.width))
            else:
                _print_lines(console, samples)
            if once:
                return None
            time.sleep(max(0.0, REFRESH_SEC - (time.monotonic() - started)))


def rows(samples: Sequence[WorkerSample]) -> list[tuple[str, ...]]:
    """Return the table's cells: one row per GPU, or one row for a worker without a GPU."""
    cells: list[tuple[str, ...]] = []
    for sample in samples:
        trial_cells = (sample.trial or "idle", sample.phase or UNKNOWN)
        if sample.error is not None:
            cells.append((sample.worker, f"unreachable: {sample.error}", *[UNKNOWN] * 7))
        elif not sample.gpus:
            load = UNKNOWN if sample.load_average_1min is None else f"{sample.load_average_1min:.1f}"
            cells.append((sample.worker, f"no GPU, load {load}", *[UNKNOWN] * 5, *trial_cells))
        for gpu in sample.gpus:
            cells.append((sample.worker, *_gpu_cells(gpu), *trial_cells))  # noqa: PERF401 - two shapes of row, one loop
    return [tuple(escape_controls(cell) for cell in row) for row in cells]


def render(samples: Sequence[WorkerSample], width: int) -> Group:
    """Return the table, then a line per unreachable worker (its error does not fit a cell) and per training."""
    error_lines = [
        f"{escape_controls(sample.worker)}: unreachable: {escape_controls(sample.error)}"
        for sample in samples
        if sample.error is not None
    ]
    reachable = [sample for sample in samples if sample.error is None]
    return Group(
        *([table(reachable, width)] if reachable else []),
        *(Text(line, style="red") for line in error_lines),
        *(Text(sample.training) for sample in samples if sample.training is not None),
    )


def table(samples: Sequence[WorkerSample], width: int) -> Table:
    """Return the rows as a table; drop the least important columns until it fits `width` characters."""
    cells = [dict(zip(COLUMNS, row, strict=True)) for row in rows(samples)]
    widths = {title: max([len(title), *(len(row[title]) for row in cells)]) + 1 for title in COLUMNS}
    titles = list(COLUMNS)
    for title in DROP_ORDER:
        if sum(map(widths.__getitem__, titles)) > width:
            titles.remove(title)
    result = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title in titles:
        min_width = widths[title] - 1 if title == "worker" else None
        justify: JustifyMethod = "right" if title in NUMERIC_COLUMNS else "left"
        result.add_column(title, no_wrap=True, overflow="ellipsis", justify=justify, min_width=min_width)
    for row in cells:
        result.add_row(*(Text(row[title], style="dim" if row["trial"] == "idle" else "") for title in titles))
    return result


def _gpu_cells(gpu: Mapping[str, Any]) -> tuple[str, ...]:
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    memory = UNKNOWN if used is None or total is None else f"{used / 2**30:.1f}/{format_gib(total)}"
    return (
        f"{gpu['gpu']} {(gpu['name'] or UNKNOWN).removeprefix('NVIDIA ')}",
        _with_unit(gpu["utilization_percent"], "%"),
        memory,
        _with_unit(gpu["power_watts"], "W"),
        _with_unit(gpu["sm_clock_mhz"], "MHz"),
        _with_unit(gpu["temperature_celsius"], "C"),
    )


def _with_unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}"


def _print_lines(console: Console, samples: Sequence[WorkerSample]) -> None:
    for row in rows(samples):
        known = ", ".join(cell for cell in row[1:] if cell != UNKNOWN)
        console.print(f"{row[0]}: {known}", markup=False, soft_wrap=True)
    for sample in samples:
        if sample.training is not None:
            console.print(sample.training, markup=False, soft_wrap=True)
