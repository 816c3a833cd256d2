"""`inv monitor`: a table of the workers' GPUs as they are now, one row each; `watch -n 5 inv monitor` repeats it.

It is read-only, and works before, during and after a run, also without the run's operator. Each sample is a command on
the worker (`python -m bench sample`, a tenth of a second of one core), so unreachable workers are shown, too. A
trial's full GPU history is in its telemetry.csv.
"""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from invoke.context import Context
from rich.console import Group
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
from tasks.fleet.training_job import open_job, read_state
from tasks.fleet.training_progress import TrainingLine
from tasks.settings.layers import Settings, load

COLUMNS = ("worker", "GPU", "busy", "memory", "power", "SM clock", "temp", "trial", "phase")
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


def show_workers(context: Context, name: str | None) -> CommandResult:
    """Show the workers, those of the run of this name, or the pods of its training."""
    settings = load(context)
    run = None if name is None else open_run(settings, name)[0]
    followed, end = run if run is not None and run.suite == TRAIN else None, None
    with contextlib.ExitStack() as stack:
        job = None if followed is None else stack.enter_context(open_job(settings, followed))
        if job is not None:
            hosts: Sequence[Host] = job.hosts
        else:
            hosts = workers.fleet_hosts(settings) if run is None else workers.run_hosts(settings, run)
        with ThreadPoolExecutor(max_workers=min(64, len(hosts))) as pool:
            samples = list(pool.map(partial(sample_worker, settings, followed), hosts))
        if job is not None and all(sample.error is not None for sample in samples) and (ended := job.end()) is not None:
            end = f"run {name}: {ended.text}; `inv collect --run={name}` fetches its results"
    console = terminal.console(soft_wrap=False)
    console.print(render(samples))
    if end is not None:
        console.print(end, markup=False, soft_wrap=True)
    data = {"workers": [asdict(sample) for sample in samples], "end": end}
    return CommandResult(data=data, failure=find_unreachable(samples) if end is None else None)


def sample_worker(settings: Settings, followed: RunRecord | None, host: Host) -> WorkerSample:
    """Sample one worker; if it does not answer, the sample has an `error`. `followed` is the training that it runs."""
    agent = Agent(host)
    try:
        measured, job = workers.bench_program(settings).sample(host), agent.holder(slot_path(host))
        sample = WorkerSample(
            worker=host.name, gpus=measured["gpus"], load_average_1min=measured["load_average_1min"], job=job
        )
        run = followed or _find_training(settings, job)
        if run is not None:
            state = read_state(run, host)
            line = TrainingLine(settings, run).text(state) if host.name == run.workers[0] else None
            phase = "starting" if state.progress is None else _phase_text(vars(state.progress))
            sample = replace(sample, trial=run.planned[0].trial_id, phase=phase, training=line)
        elif job is not None:
            progress = Job(agent, job).watch(lambda _: None, progress=PROGRESS_PATH, duration_sec=0.0).progress
            trial = PurePosixPath(job).name.rpartition(".")[0]  # without the attempt
            sample = replace(sample, trial=trial, phase=None if progress is None else _phase_text(progress))
        rows([sample])
    except HostError as error:
        reason = str(error).removeprefix(f"{host.name}: ")
    except (KeyError, TypeError, ValueError, AttributeError):
        reason = "its bench sent an unreadable sample; does its image have another version?"
    else:
        return sample
    return WorkerSample(worker=host.name, error=reason)


def _find_training(settings: Settings, job: str | None) -> RunRecord | None:
    """Return the training of a job's folder; None if this machine does not know it."""
    try:
        run = RunRecord.read(settings.results_folder / PurePosixPath(job or "").parent.name / RUN_FILE)
    except ResultError:
        return None
    return run if run.suite == TRAIN else None


def _phase_text(progress: Mapping[str, Any]) -> str:
    return f"{progress.get('phase', UNKNOWN)} {progress.get('step', 0)}/{progress.get('steps', 0)}"


def find_unreachable(samples: Sequence[WorkerSample]) -> RetryableError | None:
    """Return an error if a worker did not answer: a script must not take that for a healthy fleet."""
    unreachable = [sample for sample in samples if sample.error is not None]
    if not unreachable:
        return None
    first = f"{unreachable[0].worker}: {unreachable[0].error}"
    count = f"{len(unreachable)} of {len(samples)} workers did not answer"
    return RetryableError(f"{count}: {first}", remedy="fix that, then rerun `inv monitor`")


def rows(samples: Sequence[WorkerSample]) -> list[tuple[str, ...]]:
    """Return the table's cells: one row per GPU, or one row for a worker without a GPU. Unreachable ones have none."""
    cells: list[tuple[str, ...]] = []
    for sample in samples:
        if sample.error is not None:
            continue
        load = UNKNOWN if sample.load_average_1min is None else f"{sample.load_average_1min:.1f}"
        gpus = [_gpu_cells(gpu) for gpu in sample.gpus] or [(f"no GPU, load {load}", *[UNKNOWN] * 5)]
        cells += [(sample.worker, *gpu, sample.trial or "idle", sample.phase or UNKNOWN) for gpu in gpus]
    return [tuple(escape_controls(cell) for cell in row) for row in cells]


def render(samples: Sequence[WorkerSample]) -> Group:
    """Return the table, then a line per unreachable worker and per training."""
    table = terminal.plain_table(*COLUMNS)
    for column in table.columns:
        column.no_wrap = True  # too narrow for whole names: one block for each row
    for row in rows(samples):
        table.add_row(*map(Text, row))
    return Group(
        *([table] if table.row_count else []),
        *(
            Text(escape_controls(f"{sample.worker}: unreachable: {sample.error}"), style="red")
            for sample in samples
            if sample.error is not None
        ),
        *(Text(sample.training) for sample in samples if sample.training is not None),
    )


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
