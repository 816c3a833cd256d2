"""`inv monitor`: what every worker's GPU is doing right now, one row each, until Ctrl-C.

It changes nothing, and works during a run, before one, or after its operator is gone. Each look is a command on the
worker (`python -m bench sample`, a tenth of a second of one core), so it also shows which workers can be reached.
A trial's whole GPU history is in its telemetry.csv.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from invoke.context import Context
from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.records.run import RunRecord
from remote.fleet.fetch_result import PROGRESS
from remote.hosts.host import Host, HostError
from remote.jobs.agent import Agent
from remote.jobs.job import Job, slot_of
from tasks.clients.workers import sample, workers
from tasks.errors import RetryableError, one_line
from tasks.fleet.k8s_training import sync_ledger as volume
from tasks.fleet.k8s_training.volume_reader import is_ordered, pods_of
from tasks.fleet.run_store import open_run
from tasks.fleet.training_progress import Trainings
from tasks.settings.load import Settings, load

EVERY_SEC = 2.0
COLUMNS = ("worker", "GPU", "busy", "memory", "power", "SM clock", "temp", "trial", "phase")
NUMBERS = ("busy", "memory", "power", "SM clock", "temp")
DROPPED_FIRST = ("SM clock", "temp", "power", "memory", "GPU", "busy")
UNKNOWN = "-"


@dataclass(frozen=True, kw_only=True)
class WorkerSample:
    """One worker's answer. `gpus` are as `python -m bench sample` prints them; `trouble`: why there is none.

    `training` is the line of the training that it leads.
    """

    worker: str
    gpus: Sequence[Mapping[str, Any]] = ()
    load_average_1min: float | None = None
    trial: str | None = None
    phase: str | None = None
    training: str | None = None
    trouble: str | None = None


def show_workers(context: Context, name: str | None, *, once: bool, plain: bool) -> None:
    settings = load(context)
    ordered = None if name is None else _ordered(settings, name)
    hosts: Sequence[Host] = workers(settings) if ordered is None else pods_of(settings, ordered)
    agents, trainings = {host.name: Agent(host) for host in hosts}, Trainings(settings)

    def ask(worker: str) -> WorkerSample:
        agent = agents[worker]
        found = look(agent, lambda host: sample(settings, host), trainings.line)
        return found if ordered is None else _of_its_volume(found, ordered, agent.host, trainings)

    watch = Watch(list(agents), ask)
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 200)
    try:
        if once:
            looks = watch.round(wait_sec=None)
            console.print(shown(looks, console.width))
            check_all_answered(looks)
        elif plain or not console.is_terminal:
            _print_lines(console, watch)
        else:
            with Live(console=console, auto_refresh=False) as live:
                for looks in _rounds(watch):
                    live.update(shown(looks, console.width), refresh=True)
    except KeyboardInterrupt:
        return  # the usual way to leave
    finally:
        watch.close()


def _ordered(settings: Settings, name: str) -> RunRecord | None:
    """The run, where a Job runs it by itself; None where the fleet's workers do. Raises UsageError."""
    run, _ = open_run(settings, name)
    return run if is_ordered(run) else None


def _of_its_volume(found: WorkerSample, run: RunRecord, host: Host, trainings: Trainings) -> WorkerSample:
    """The same look, with what the shared volume says of the training that this pod has a part in."""
    if found.trouble is not None:
        return found
    try:
        seen = volume.inspect(run, host)
    except HostError as error:
        return replace(found, trouble=one_line(str(error)))
    if not seen.attempts:
        return replace(found, phase="starting")
    progress, trial = seen.progress or {}, run.planned[0].trial_id
    job = f"{volume.place_of_run(run)}/{trial}.{seen.attempts[-1][0]}"
    line = trainings.line(job, seen.progress, seen.held(run)) if host.name == run.workers[0] else None
    return replace(found, trial=trial, phase=phase_of(progress), training=line)


def look(
    agent: Agent,
    sample: Callable[[Host], Mapping[str, Any]],
    training: Callable[[str, Mapping[str, Any] | None], str | None] = lambda _job, _progress: None,
) -> WorkerSample:
    """Ask one worker; one that does not answer gives a Look with `trouble`."""
    worker = agent.host.name
    try:
        measured = sample(agent.host)
        holder = agent.holder(slot_of(agent.host))
        progress = None
        if holder is not None:
            progress = Job(agent, holder).watch(lambda _: None, progress=PROGRESS, for_sec=0.0).progress
    except HostError as error:
        return WorkerSample(worker=worker, trouble=str(error).removeprefix(f"{worker}: "))
    try:
        found = WorkerSample(
            worker=worker,
            gpus=measured["gpus"],
            load_average_1min=measured["load_average_1min"],
            trial=None if holder is None else PurePosixPath(holder).name.rpartition(".")[0],  # less the attempt
            phase=None if progress is None else phase_of(progress),
            training=None if holder is None else training(holder, progress),
        )
        rows([found])
    except (KeyError, TypeError, ValueError, AttributeError):
        return WorkerSample(
            worker=worker, trouble="its bench answers what this version does not read; is its image another's?"
        )
    return found


def phase_of(progress: Mapping[str, Any]) -> str:
    return f"{progress.get('phase', UNKNOWN)} {progress.get('step', 0)}/{progress.get('steps', 0)}"


def check_all_answered(looks: Sequence[WorkerSample]) -> None:
    """Raises Resumable where a worker could not be asked: a script must not read that as a healthy fleet."""
    silent = [look for look in looks if look.trouble is not None]
    if silent:
        first = f"{silent[0].worker}: {silent[0].trouble}"
        count = f"{len(silent)} of {len(looks)} workers could not be asked"
        raise RetryableError(f"{count}: {first}; once that is mended, `inv monitor --once` again")


class Watch:
    """The last look at each worker. Workers are asked in parallel, and nobody waits for a slow one."""

    def __init__(self, workers: Sequence[str], ask: Callable[[str], WorkerSample]) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(max_workers=min(64, len(workers)))
        self._asked: dict[str, Future[WorkerSample]] = {}
        self._last = {worker: WorkerSample(worker=worker, trouble="asked, no answer yet") for worker in workers}

    def round(self, *, wait_sec: float | None) -> list[WorkerSample]:
        """Ask all workers but those still answering; wait `wait_sec` (None: for all); return the last look at each."""
        for worker in self._last:
            if worker not in self._asked:
                self._asked[worker] = self._pool.submit(self._ask, worker)
        done, _ = wait(self._asked.values(), timeout=wait_sec)
        for worker, answer in list(self._asked.items()):
            if answer in done:
                self._last[worker] = answer.result()
                del self._asked[worker]
        return list(self._last.values())

    def close(self) -> None:
        """Ask no more; a worker that is still answering has its own deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def rows(looks: Sequence[WorkerSample]) -> list[tuple[str, ...]]:
    """The cells of the table: a row for each GPU, or one for a worker without."""
    cells: list[tuple[str, ...]] = []
    for look in looks:
        doing = (look.trial or "idle", look.phase or UNKNOWN)
        if look.trouble is not None:
            cells.append((look.worker, f"unreachable: {look.trouble}", *[UNKNOWN] * 7))
        elif not look.gpus:
            load = UNKNOWN if look.load_average_1min is None else f"{look.load_average_1min:.1f}"
            cells.append((look.worker, f"no GPU, load {load}", *[UNKNOWN] * 5, *doing))
        for gpu in look.gpus:
            cells.append((look.worker, *_gpu_cells(gpu), *doing))  # noqa: PERF401 - two shapes of row, one loop
    return [tuple(one_line(cell) for cell in row) for row in cells]


def shown(looks: Sequence[WorkerSample], width: int) -> Group:
    """The table; below it a line for each worker that cannot be reached (its reason is longer than any cell), and
    for each training."""
    lost = [
        f"{one_line(look.worker)}: unreachable: {one_line(look.trouble)}" for look in looks if look.trouble is not None
    ]
    reached = [look for look in looks if look.trouble is None]
    return Group(
        *([table(reached, width)] if reached else []),
        *(Text(line, style="red") for line in lost),
        *(Text(look.training) for look in looks if look.training is not None),
    )


def table(looks: Sequence[WorkerSample], width: int) -> Table:
    """The rows as a table, without the columns that `width` characters have no room for, least important first."""
    cells = [dict(zip(COLUMNS, row, strict=True)) for row in rows(looks)]
    wide = {title: max([len(title), *(len(row[title]) for row in cells)]) + 1 for title in COLUMNS}
    kept = list(COLUMNS)
    for title in DROPPED_FIRST:
        if sum(wide[one] for one in kept) > width:
            kept.remove(title)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title in kept:
        least = wide[title] - 1 if title == "worker" else None
        side: JustifyMethod = "right" if title in NUMBERS else "left"
        made.add_column(title, no_wrap=True, overflow="ellipsis", justify=side, min_width=least)
    for row in cells:
        made.add_row(*(Text(row[title], style="dim" if row["trial"] == "idle" else "") for title in kept))
    return made


def _gpu_cells(gpu: Mapping[str, Any]) -> tuple[str, ...]:
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    memory = UNKNOWN if used is None or total is None else f"{used / 2**30:.1f}/{total / 2**30:.1f} GiB"
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


def _rounds(watch: Watch) -> Iterator[list[WorkerSample]]:
    """A round of looks every EVERY_SEC, without end."""
    while True:
        began = time.monotonic()
        yield watch.round(wait_sec=EVERY_SEC)
        time.sleep(max(0.0, EVERY_SEC - (time.monotonic() - began)))


def _print_lines(console: Console, watch: Watch) -> None:
    for looks in _rounds(watch):
        for row in rows(looks):
            known = ", ".join(cell for cell in row[1:] if cell != UNKNOWN)
            console.print(f"{row[0]}: {known}", markup=False, soft_wrap=True)
        for look in looks:
            if look.training is not None:
                console.print(look.training, markup=False, soft_wrap=True)
