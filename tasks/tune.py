"""`inv tune`: find the best configuration for these GPUs, this model and this data, and say how sure that is.

Observe (one worker surveys its GPU, the samples' lengths, and what would fit), plan (the candidates and the first wave,
which `--dry-run` prints), act (waves of short trials over the fleet, each an ordinary run in the results folder, then
the finalists in full), answer (a front of speed against memory, and a file that `inv bench --trials` takes).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import Interrupted, Refused, Resumable, SomeTrialsFailed, TaskFailed, UsageError

if TYPE_CHECKING:
    from bench.result import TrialResult
    from remote.host import Host
    from tasks.settings import Settings
    from tasks.tuning.answer import Measured
    from tasks.tuning.record import TuneRecord
    from tasks.tuning.search import Search
    from tasks.tuning.space import Candidate, MemoryLimit

CONTEXT_BYTES = 600 << 20  # of the driver and the kernels' modules, and what the allocator cannot hand out
SHORT_STEPS = {"gpu": (3, 6), "tiny": (1, 3)}  # warm-up and measured: enough to rank, a fifth of a full trial


@task(
    optional=["resume"],
    help={
        "resume": "go on with the newest search, or with the one of this id; nothing finished is measured again",
        "memory-gib": "GPU memory a configuration may use (default: tune.memory_gib, else what the GPU has)",
        "dry-run": "print the candidates and the first wave, and touch nothing",
        "plain": "plain lines instead of the live table, also on a terminal",
    },
)
def tune(
    context: Context,
    resume: str | None = None,
    memory_gib: str | None = None,
    dry_run: bool = False,
    plain: bool = False,
) -> None:
    """Search for the fastest configuration that fits."""
    from tasks import settings as house
    from tasks.lock import only_one
    from tasks.tuning import record as records
    from tasks.workers import workers

    settings = house.load(context)
    _check_recipes(settings)
    limit_gib = _limit(settings, memory_gib)
    hosts = workers(settings)
    if resume:
        if memory_gib is not None:
            raise UsageError("tune: --resume goes on with a search's own limit; leave out --memory-gib")
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        found = records.find(settings.results_folder, name)
        _refuse_other_ground(found, _survey(settings, hosts[0], []))
    else:
        found = _plan(settings, hosts, limit_gib)
    if dry_run:
        _print_plan(found, len(hosts))
        return
    with only_one(settings.results_folder, f"tune (search {found.tune_id})"):
        if not resume:
            found = records.create(settings.results_folder, found)
        try:
            _search(settings, found, hosts, plain=plain)
        except Interrupted:
            raise Interrupted(
                f"search {found.tune_id}: interrupted; `inv tune --resume={found.tune_id}` goes on with it"
            ) from None
        except Resumable as error:
            raise Resumable(f"{error}; `inv tune --resume={found.tune_id}` goes on with the search") from None


# Observe and plan ------------------------------------------------------------------------------------------------


def _check_recipes(settings: Settings) -> None:
    from bench.trial import RECIPES

    for name in settings.tune.recipes:
        if name not in RECIPES:
            raise UsageError(f"invoke.yaml: tune.recipes: expected names of {', '.join(RECIPES)}, found {name!r}")
    if not settings.tune.recipes:
        raise UsageError(f"invoke.yaml: tune.recipes: expected at least one of {', '.join(RECIPES)}")


def _limit(settings: Settings, asked: str | None) -> float | None:
    if asked is None:
        return settings.tune.memory_gib
    try:
        gib = float(asked)
    except ValueError:
        gib = 0.0
    if not 0.0 < gib <= 1024.0:
        raise UsageError(f"tune: --memory-gib: expected a number above 0, at most 1024, found {asked!r}")
    return gib


def _survey(settings: Settings, host: Host, trials: Sequence[Any]) -> Mapping[str, Any]:
    from remote.host import HostError
    from tasks.workers import survey

    try:
        said = survey(settings, host, trials)
    except HostError as error:
        raise Resumable(f"{error}; see that the workers are up, then type the same again") from None
    if isinstance(said, str):
        raise UsageError(f"{host.name}: {said}")
    return said


def _plan(settings: Settings, hosts: Sequence[Host], limit_gib: float | None) -> TuneRecord:
    from tasks.tuning import space
    from tasks.tuning.record import TuneRecord

    bench, chosen = settings.bench, settings.tune
    ground = _survey(settings, hosts[0], [])
    longest = space.max_seq_len(
        ground["data"]["percentiles"], chosen.keep_percent, bench.profile, ground["model"]["positions"]
    )
    targets = space.ALL_LINEAR if chosen.lora_targets == "all-linear" else space.ATTENTION
    found = space.candidates(
        model=settings.model.path,
        data=settings.data.path,
        profile=bench.profile,
        recipes=chosen.recipes,
        longest=longest,
        lora={"lora_rank": chosen.lora_rank, "lora_alpha": 2 * chosen.lora_rank, "lora_targets": targets},
        steps=SHORT_STEPS[bench.profile],
        seed=bench.seed,
        samples=ground["data"]["samples"],
    )
    predicted = _survey(settings, hosts[0], [one.trial for one in found])["trials"]
    candidates = space.with_predictions(found, predicted)
    gpu = ground["gpu"] if bench.profile == "gpu" else None
    limit = _limit_bytes(limit_gib, gpu)
    record = TuneRecord(
        tune_id=f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}-tune",
        gpu=None if gpu is None else gpu["name"],
        model_sha256=ground["model"]["sha256"],
        data_sha256=ground["data"]["sha256"],
        longest=longest,
        limit_bytes=limit,
        settings=settings.public(),
        candidates=candidates,
        inputs={what: {"sha256": ground[what]["sha256"]} for what in ("model", "data")},
    )
    _refuse_too_little(record)
    return record


def _limit_bytes(limit_gib: float | None, gpu: Mapping[str, Any] | None) -> int | None:
    """What a configuration may use; what the driver and fragments take is left out where the GPU's own size counts."""
    if limit_gib is not None:
        return round(limit_gib * 2**30)
    total = None if gpu is None else gpu["memory_bytes"]
    return None if total is None else total - CONTEXT_BYTES


def _refuse_too_little(record: TuneRecord) -> None:
    limit = record.memory()
    if any(limit.fits(one) for one in record.candidates):
        return
    smallest = min(record.candidates, key=lambda one: one.peak_bytes or 0)
    raise UsageError(
        f"tune.memory_gib: {(record.limit_bytes or 0) / 2**30:.1f} GiB is below the smallest configuration, "
        f"{smallest.key}, which needs about {(smallest.peak_bytes or 0) / 2**30:.1f} GiB; "
        "raise it, shorten samples (tune.keep_percent), or take a smaller model"
    )


def _refuse_other_ground(record: TuneRecord, ground: Mapping[str, Any]) -> None:
    """Figures of two GPUs, models or data sets are not to be ranked in one table."""
    gpu = None if ground["gpu"] is None or record.gpu is None else ground["gpu"]["name"]
    for what, before, now in (
        ("the GPU", record.gpu, gpu),
        ("the model (sha256)", record.model_sha256, ground["model"]["sha256"]),
        ("the data (sha256)", record.data_sha256, ground["data"]["sha256"]),
    ):
        if before != now:
            raise Refused(
                f"search {record.tune_id}: {what} was {before}, and is {now} now; their figures cannot be ranked "
                "together: begin a new search with `inv tune`"
            )


def _print_plan(record: TuneRecord, workers: int) -> None:
    from rich.console import Console
    from rich.table import Table

    limit = record.memory()
    fitting = [one for one in record.candidates if limit.fits(one)]
    console = Console()
    room = "no memory limit" if record.limit_bytes is None else f"within {record.limit_bytes / 2**30:.1f} GiB"
    console.print(
        f"plan: {len(record.candidates)} candidates of {record.longest} tokens, {len(fitting)} fit ({room}); "
        f"first wave over {workers} workers:",
        markup=False,
    )
    console.print(_table(Table, _first(record, workers), limit))
    console.print("nothing was touched", markup=False)


def _table(make: Any, found: Sequence[Candidate], limit: MemoryLimit) -> Any:
    table = make(box=None, pad_edge=False, header_style="bold")
    for head in ("configuration", "predicted GiB", "useful positions"):
        table.add_column(head, no_wrap=True)
    for one in found:
        peak = limit.corrected(one)
        size = "-" if peak is None or limit.limit_bytes is None else f"{peak / 2**30:.1f}"
        table.add_row(one.key, size, f"{100 * one.useful_share:.0f} %")
    return table


def _first(record: TuneRecord, count: int) -> list[Candidate]:
    from tasks.tuning.search import promising

    return promising(record.candidates, record.memory(), count)


# Act --------------------------------------------------------------------------------------------------------------


def _search(settings: Settings, record: TuneRecord, hosts: list[Host], *, plain: bool) -> None:
    from tasks.tuning.search import Search, finalists, goes_on

    search = Search(record.journal, record.candidates, recipes=settings.tune.recipes, seed=settings.bench.seed)
    before: float | None = None
    for number in range(settings.tune.waves):
        if number < len(record.waves):
            run_id: str | None = record.waves[number]
            wave: list[Candidate] = []
        else:
            limit = record.memory(_observed(settings, record))
            wave = _first(record, len(hosts)) if number == 0 else search.next(limit, len(hosts))
            if not wave:
                print(f"search {record.tune_id}: nothing is left to try")
                break
            run_id = None
        before = search.best
        run_id = _run(settings, record, f"tune-wave-{number + 1}", wave, run_id, hosts, repeats=1, plain=plain)
        _learn(settings, record, search, run_id)
        if number > 0 and not goes_on(before, search.best):
            print(f"search {record.tune_id}: wave {number + 1} hardly improved on the best; on to the finalists")
            break
    chosen = finalists(record.candidates, search.results, settings.tune.finalists)
    if not chosen:
        raise TaskFailed(
            f"search {record.tune_id}: no trial succeeded; `inv collect report --run={record.waves[-1]}` says why"
        )
    run_id = _run(
        settings, record, "tune-final", chosen, record.final, hosts, repeats=settings.tune.repeats, plain=plain
    )
    _answer(settings, record, search, run_id)


def _run(
    settings: Settings,
    record: TuneRecord,
    name: str,
    chosen: Sequence[Candidate],
    run_id: str | None,
    hosts: list[Host],
    *,
    repeats: int,
    plain: bool,
) -> str:
    """Run these candidates as an ordinary run, or go on with the one of this id; its id."""
    from tasks import running

    is_final = name == "tune-final"
    try:
        if run_id is not None:
            running.go_on(settings, run_id, hosts, plain=plain)
            return run_id
        trials = [one.full(settings) if is_final else one.trial for one in chosen]
        bench = settings.bench.model_copy(update={"spread": "shard", "repeats": repeats})
        settings = settings.model_copy(update={"bench": bench})
        run = running.plan_of(settings, name, trials, hosts, inputs=record.inputs)
        run, folder, ledger = running.write_plan(settings, run)
        record.add_run(run.run_id, is_final=is_final)  # before it starts: a resume must find it
        running.work(settings, run, folder, ledger, hosts, plain=plain)
        return run.run_id
    except SomeTrialsFailed as some:
        print(some)  # what does not fit or does not work is an answer too
        return run_id or (record.final if is_final else record.waves[-1]) or ""


def _results(settings: Settings, run_id: str) -> list[TrialResult]:
    from bench.result import RESULT_FILE, ResultError, TrialResult

    found = []
    for path in sorted((settings.results_folder / run_id / "trials").glob(f"*/{RESULT_FILE}")):
        try:
            found.append(TrialResult.read(path))
        except ResultError as error:
            raise Refused(f"{error}; remove that run's folder, then type the same again") from None
    return found


def _learn(settings: Settings, record: TuneRecord, search: Search, run_id: str) -> None:
    from bench.result import End

    by_key = {one.key: one for one in record.candidates}
    for result in _results(settings, run_id):
        one = by_key.get(result.trial.trial_id)
        gpu = result.fingerprint.get("gpu_name")
        if record.gpu is not None and gpu is not None and gpu != record.gpu:
            raise Refused(f"{result.worker} has a {gpu}, the search is for a {record.gpu}; leave it out of the fleet")
        if one is None or result.status.is_resumable:
            continue
        good = result.status is End.SUCCEEDED and result.metrics is not None
        search.tell(one, result.metrics.useful_tokens_per_sec if good and result.metrics is not None else None)


def _observed(settings: Settings, record: TuneRecord) -> list[Any]:
    """Every measured peak and every trial that ran out of memory, of all waves so far."""
    from bench.result import End
    from tasks.tuning.space import Observation

    by_key = {one.key: one for one in record.candidates}
    observed = []
    for run_id in record.waves:
        for result in _results(settings, run_id):
            one = by_key.get(result.trial.trial_id)
            if one is None:
                continue
            if result.status is End.OUT_OF_MEMORY:
                observed.append(Observation(candidate=one, peak_bytes=None))
            elif result.metrics is not None and result.metrics.peak_vram_bytes is not None:
                observed.append(Observation(candidate=one, peak_bytes=result.metrics.peak_vram_bytes))
    return observed


# Answer -----------------------------------------------------------------------------------------------------------


def _answer(settings: Settings, record: TuneRecord, search: Search, run_id: str) -> None:
    from tasks.tuning import answer

    limit = record.memory(_observed(settings, record))
    results = _results(settings, run_id)
    measured: list[Measured] = []
    for one in record.candidates:
        mine = [result for result in results if result.trial.trial_id == one.key]
        predicted = limit.corrected(one) if record.limit_bytes is not None else None
        figures = answer.measured(one.full(settings), mine, predicted, settings.cost.price_usd_per_gpu_hour)
        if figures is not None:
            measured.append(figures)
    if not measured:
        raise TaskFailed(
            f"search {record.tune_id}: no finalist succeeded; `inv collect report --run={run_id}` says why"
        )
    kept = answer.front(measured)
    about = {"tune_id": record.tune_id, "gpu": record.gpu, "tried": len(search.results), "final_run": run_id}
    record.write_answer(answer.document(kept, about), kept[0].trial.to_text())
    _print_answer(settings, record, kept, len(search.results))


def _print_answer(settings: Settings, record: TuneRecord, kept: Sequence[Measured], tried: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from tasks.tuning.answer import titles

    console, best_at = Console(), titles(kept)
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = ("configuration", "useful tokens/s", "95 %", "GiB", "predicted", "$ / M useful tokens", "best at")
    for head in heads:
        table.add_column(head, no_wrap=True)
    for one in kept:
        between = "-" if one.interval is None else f"{one.interval.low:,.0f} to {one.interval.high:,.0f}"
        table.add_row(
            one.trial.trial_id,
            f"{one.useful_tokens_per_sec:,.0f}",
            between,
            "-" if one.peak_vram_bytes is None else f"{one.peak_vram_bytes / 2**30:.1f}",
            "-" if one.predicted_bytes is None else f"{one.predicted_bytes / 2**30:.1f}",
            "-" if one.usd_per_million_useful_tokens is None else f"{one.usd_per_million_useful_tokens:.3f}",
            best_at[one.trial.trial_id],
        )
    on = f"on {record.gpu}" if record.gpu else "on CPUs, profile tiny: these numbers say nothing about a GPU"
    console.print(f"search {record.tune_id}: {tried} of {len(record.candidates)} candidates tried, {on}", markup=False)
    console.print(table)
    folder = Path(settings.results.folder) / "tune" / record.tune_id
    console.print(f"`inv bench --trials {folder / 'best.json'}` runs the best again", markup=False)
