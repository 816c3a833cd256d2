"""A search under way: waves of short trials over the fleet, the finalists in full, the answer.

Each wave, and the finalists, is an ordinary run: it is in the results folder, `inv collect report` reports it, and it
can be resumed.
"""

from collections.abc import Iterator, Sequence

from bench.records.checksummed import ResultError
from bench.records.paths import RESULT_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult, TrialStatus
from remote.hosts.host import Host
from tasks.errors import ConfirmationRequired, RetryableError, SomeTrialsFailed, TaskFailed, translate_errors
from tasks.fleet import runner
from tasks.settings.load import Settings
from tasks.tuning import pareto
from tasks.tuning.output import show_answer
from tasks.tuning.search import Search
from tasks.tuning.search_state import TuneRecord
from tasks.tuning.space import Candidate, TrialObservation, holding


def search(settings: Settings, record: TuneRecord, hosts: list[Host], *, plain: bool) -> None:
    """Go on with this search from where it stands, to its answer.

    Raises Resumable, Interrupted, Refused, and TaskFailed where nothing worked.
    """
    finder = Search(record.journal, record.candidates, recipes=settings.tune.recipes)
    for number in range(settings.tune.trials + len(record.waves)):
        again = record.waves[number] if number < len(record.waves) else None
        wave = [] if again is not None or record.final is not None else _next(settings, record, finder, len(hosts))
        if again is None and not wave:
            break
        known = len(finder.results)
        name = f"tune-wave-{number + 1}"
        run_id = _run(settings, record, name, wave, again, hosts, repeats=1, plain=plain)
        _learn(settings, record, finder, run_id)
        if again is None and len(finder.results) == known:
            raise RetryableError(f"run {run_id}: no trial of it ran to its end")
    limit = record.memory(_observed(settings, record))
    chosen = finder.finalists(limit, settings.tune.finalists)
    if not chosen:
        raise TaskFailed(
            f"search {record.tune_id}: no trial succeeded; `inv collect report --run={record.waves[-1]}` says why"
        )
    held = [one for one in (holding(chosen[0], limit, record.depth),) if one is not None]
    repeats = settings.tune.repeats
    run_id = _run(settings, record, "tune-final", [*chosen, *held], record.final, hosts, repeats=repeats, plain=plain)
    _answer(settings, record, finder, run_id, held)


def _next(settings: Settings, record: TuneRecord, finder: Search, workers: int) -> list[Candidate]:
    left = settings.tune.trials - len(finder.results)
    wave = finder.next(record.memory(_observed(settings, record)), min(workers, left)) if left > 0 else []
    if not wave:
        why = (
            "no other candidate is expected to be faster"
            if left > 0
            else f"tune.trials = {settings.tune.trials} are used up"
        )
        print(f"search {record.tune_id}: {len(finder.results)} short trials; {why}; on to the finalists")
    return wave


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
    """Run these candidates as an ordinary run, or resume the run of this id. Returns the run's id."""
    is_final = name == "tune-final"
    try:
        if run_id is not None:
            runner.resume(settings, run_id, hosts, plain=plain)
            return run_id
        trials = [one.full(settings) if is_final else one.trial for one in chosen]
        bench = settings.bench.model_copy(update={"spread": "shard", "repeats": repeats})
        settings = settings.model_copy(update={"bench": bench})
        run = runner.plan_of(settings, name, trials, hosts, inputs=record.inputs)
        run, folder, ledger = runner.write_plan(settings, run)
        record.add_run(run.run_id, is_final=is_final)  # before it starts: a resume must find it
        runner.work(settings, run, folder, ledger, hosts, plain=plain)
        return run.run_id
    except SomeTrialsFailed as some:
        print(some)  # a trial that does not fit or breaks is a result too
        return run_id or (record.final if is_final else record.waves[-1]) or ""


def _results(settings: Settings, run_id: str) -> Iterator[TrialResult]:
    for path in sorted((settings.results_folder / run_id / TRIALS_FOLDER).glob(f"*/{RESULT_FILE}")):
        with translate_errors(
            ConfirmationRequired, ResultError, after="; remove that run's folder, then type the same again"
        ):
            yield TrialResult.read(path)


def _learn(settings: Settings, record: TuneRecord, finder: Search, run_id: str) -> None:
    by_key = {candidate.key: candidate for candidate in record.candidates}
    for result in _results(settings, run_id):
        one = by_key.get(result.trial.trial_id)
        gpu = result.fingerprint.get("gpu_name")
        if record.gpu is not None and gpu is not None and gpu != record.gpu:
            raise ConfirmationRequired(
                f"{result.worker} has another GPU ({gpu}) than the others ({record.gpu}); remove it from the fleet"
            )
        if one is None or result.status.is_resumable:
            continue
        metrics = result.metrics if result.status is TrialStatus.SUCCEEDED else None
        rate = None if metrics is None else metrics.useful_tokens_per_sec
        finder.tell(one, rate, is_too_large=result.status is TrialStatus.OUT_OF_MEMORY)


def _observed(settings: Settings, record: TuneRecord) -> list[TrialObservation]:
    """Every measured peak and every trial that ran out of memory, of all waves so far."""
    by_key = {candidate.key: candidate for candidate in record.candidates}
    observed = []
    for run_id in record.waves:
        for result in _results(settings, run_id):
            one = by_key.get(result.trial.trial_id)
            if one is None:
                continue
            if result.status is TrialStatus.OUT_OF_MEMORY:
                observed.append(TrialObservation(candidate=one, peak_bytes=None))
            elif result.metrics is not None and result.metrics.peak_vram_bytes is not None:
                observed.append(TrialObservation(candidate=one, peak_bytes=result.metrics.peak_vram_bytes))
    return observed


def _answer(settings: Settings, record: TuneRecord, finder: Search, run_id: str, held: Sequence[Candidate]) -> None:
    limit = record.memory(_observed(settings, record))
    results = list(_results(settings, run_id))
    measured: list[pareto.MeasuredCandidate] = []
    for one in (*record.candidates, *held):
        mine = [result for result in results if result.trial.trial_id == one.key]
        predicted = limit.corrected(one) if record.limit_bytes is not None else None
        figures = pareto.measured(one.full(settings), mine, predicted, settings.cost.price_usd_per_gpu_hour)
        if figures is not None:
            measured.append(figures)
    if not measured:
        raise TaskFailed(
            f"search {record.tune_id}: no finalist succeeded; `inv collect report --run={run_id}` says why"
        )
    kept = pareto.front(measured)
    runs = filter(None, (*record.waves, record.final))
    about = {
        "tune_id": record.tune_id,
        "gpu": record.gpu,
        "tried": len(finder.results),
        "worker_sec": sum(result.wall_time_sec or 0.0 for run in runs for result in _results(settings, run)),
        "final_run": run_id,
    }
    record.write_answer(pareto.document(kept, about), kept[0].trial.to_text())
    show_answer(settings, record, kept, about)
