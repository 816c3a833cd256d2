"""Execution of a search: waves of short trials over the fleet, the finalists in full, the answer.

Each wave is an ordinary run, and so are the finalists: it has a results folder, `inv collect report` reports it, and it
can be resumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.records import Trial
from bench.records.checksummed import ResultError
from bench.records.paths import RESULT_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from remote.hosts.base import Host
from tasks.errors import ConfirmationRequired, RetryableError, SomeTrialsFailed, TaskFailed, translate_errors
from tasks.fleet import runner
from tasks.fleet.plan import plan_trials
from tasks.settings.load import Settings
from tasks.tuning import pareto
from tasks.tuning.output import show_answer
from tasks.tuning.search import Search
from tasks.tuning.search_state import TuneRecord
from tasks.tuning.space import Candidate, TrialObservation, with_held_layers


def search(settings: Settings, record: TuneRecord, hosts: list[Host], *, plain: bool) -> None:
    """Run or resume this search to its answer.

    Raises RetryableError, Interrupted, ConfirmationRequired, and TaskFailed if no trial succeeded.
    """
    candidate_search = Search(record.journal, record.candidates, recipes=record.recipes)
    for number in range(settings.tune.trials + len(record.waves)):
        existing_run_id = record.waves[number] if number < len(record.waves) else None
        wave = (
            []
            if existing_run_id is not None or record.final is not None
            else _next_wave(settings, record, candidate_search, len(hosts))
        )
        if existing_run_id is None and not wave:
            break
        known_results = len(candidate_search.results)
        name = f"tune-wave-{number + 1}"
        run_id = _run_candidates(settings, record, name, wave, existing_run_id, hosts, repeats=1, plain=plain)
        _record_results(settings, record, candidate_search, run_id)
        if existing_run_id is None and len(candidate_search.results) == known_results:
            raise RetryableError(f"run {run_id}: none of its trials finished")
    limit = record.memory_limit(_memory_observations(settings, record))
    finalists = candidate_search.finalists(limit, settings.tune.finalists)
    if not finalists:
        raise TaskFailed(
            f"search {record.tune_id}: no trial succeeded", remedy=f"see `inv collect report --run={record.waves[-1]}`"
        )
    held_variants = [
        candidate for candidate in (with_held_layers(finalists[0], limit, record.depth),) if candidate is not None
    ]
    repeats = settings.tune.repeats
    run_id = _run_candidates(
        settings, record, "tune-final", [*finalists, *held_variants], record.final, hosts, repeats=repeats, plain=plain
    )
    _write_answer(settings, record, candidate_search, run_id, held_variants)


def _next_wave(settings: Settings, record: TuneRecord, candidate_search: Search, workers: int) -> list[Candidate]:
    remaining = settings.tune.trials - len(candidate_search.results)
    wave = (
        candidate_search.next_wave(record.memory_limit(_memory_observations(settings, record)), min(workers, remaining))
        if remaining > 0
        else []
    )
    if not wave:
        reason = (
            "no other candidate is expected to be faster"
            if remaining > 0
            else f"the limit tune.trials = {settings.tune.trials} is reached"
        )
        print(
            f"search {record.tune_id}: {len(candidate_search.results)} short trials; {reason}; measuring the finalists"
        )
    return wave


def _run_candidates(
    settings: Settings,
    record: TuneRecord,
    name: str,
    candidates: Sequence[Candidate],
    run_id: str | None,
    hosts: list[Host],
    *,
    repeats: int,
    plain: bool,
) -> str:
    """Run these candidates as an ordinary run, or resume the run with this id. Returns the run's id."""
    is_final = name == "tune-final"
    try:
        if run_id is not None:
            runner.resume(settings, run_id, hosts, plain=plain)
            return run_id
        trials = [candidate.full_trial(settings) if is_final else candidate.trial for candidate in candidates]
        bench = settings.bench.model_copy(update={"spread": "shard", "repeats": repeats})
        settings = settings.model_copy(update={"bench": bench})
        names = [host.name for host in hosts]
        planned = plan_trials(trials, names, "shard", repeats, is_over_pods=settings.connector.is_cluster)
        if is_final:
            planned = assign_finalists(planned, names, repeats)
        run = runner.new_record(settings, name, planned, names, inputs=record.inputs)
        run, folder, ledger = runner.write_plan(settings, run)
        record.add_run(run.run_id, is_final=is_final)  # write it before the start, so that a resume finds it
        runner.run_trials(settings, run, folder, ledger, hosts, plain=plain)
        return run.run_id
    except SomeTrialsFailed as error:
        print(error)  # a trial that fails or does not fit is a result, too
        return run_id or (record.final if is_final else record.waves[-1]) or ""


def assign_finalists(planned: Sequence[PlannedTrial], workers: Sequence[str], repeats: int) -> list[PlannedTrial]:
    """Assign the repeats of each finalist to different workers, each finalist beginning at the next worker.

    At most as many workers are used as leave one repeat to measure the noise when the workers' own speeds are removed
    (`pareto.adjusted_rates`). A single repeat runs on any worker.
    """
    if repeats < 2 or len(workers) < 2:
        return list(planned)
    finalists = list(dict.fromkeys(plan.trial for plan in planned))
    used = workers[: max(repeats, len(finalists) * (repeats - 1))]
    turns: dict[Trial, int] = {trial: index for index, trial in enumerate(finalists)}
    assigned = []
    for plan in planned:
        assigned.append(replace(plan, worker=used[turns[plan.trial] % len(used)]))
        turns[plan.trial] += 1
    return assigned


def _results(settings: Settings, run_id: str) -> Iterator[TrialResult]:
    for path in sorted((settings.results_folder / run_id / TRIALS_FOLDER).glob(f"*/{RESULT_FILE}")):
        with translate_errors(
            ConfirmationRequired, ResultError, remedy="remove that run's folder, then rerun `inv tune --resume`"
        ):
            yield TrialResult.read(path)


def _record_results(settings: Settings, record: TuneRecord, candidate_search: Search, run_id: str) -> None:
    by_key = {candidate.key: candidate for candidate in record.candidates}
    for result in _results(settings, run_id):
        measured = by_key.get(result.trial.trial_id)
        gpu = result.fingerprint.get("gpu_name")
        if record.gpu is not None and gpu is not None and gpu != record.gpu:
            raise ConfirmationRequired(
                f"{result.worker} has another GPU ({gpu}) than the others ({record.gpu})",
                remedy="remove it from the fleet",
            )
        if measured is None or result.status.is_resumable:
            continue
        metrics = result.metrics if result.status is TrialStatus.SUCCEEDED else None
        rate = None if metrics is None else metrics.useful_tokens_per_sec
        candidate_search.record(measured, rate, is_too_large=result.status is TrialStatus.OUT_OF_MEMORY)


def _memory_observations(settings: Settings, record: TuneRecord) -> list[TrialObservation]:
    """Collect the measured peaks and the trials that ran out of memory, of all waves so far."""
    by_key = {candidate.key: candidate for candidate in record.candidates}
    observed = []
    for run_id in record.waves:
        for result in _results(settings, run_id):
            measured = by_key.get(result.trial.trial_id)
            if measured is None:
                continue
            if result.status is TrialStatus.OUT_OF_MEMORY:
                observed.append(TrialObservation(candidate=measured, peak_bytes=None))
            elif result.metrics is not None and result.metrics.peak_vram_bytes is not None:
                observed.append(TrialObservation(candidate=measured, peak_bytes=result.metrics.peak_vram_bytes))
    return observed


def _write_answer(
    settings: Settings, record: TuneRecord, candidate_search: Search, run_id: str, held_variants: Sequence[Candidate]
) -> None:
    limit = record.memory_limit(_memory_observations(settings, record))
    results = list(_results(settings, run_id))
    measured: list[pareto.MeasuredCandidate] = []
    rates = pareto.adjusted_rates(results)
    for candidate in (*record.candidates, *held_variants):
        own_results = [result for result in results if result.trial.trial_id == candidate.key]
        predicted = limit.corrected_peak(candidate) if record.limit_bytes is not None else None
        summary = pareto.summarize(
            candidate.full_trial(settings),
            own_results,
            predicted,
            settings.cost.price_usd_per_gpu_hour,
            rates.get(candidate.key),
        )
        if summary is not None:
            measured.append(summary)
    if not measured:
        raise TaskFailed(
            f"search {record.tune_id}: no finalist succeeded", remedy=f"see `inv collect report --run={run_id}`"
        )
    front = pareto.front(measured)
    runs = filter(None, (*record.waves, record.final))
    facts = {
        "tune_id": record.tune_id,
        "gpu": record.gpu,
        "tried": len(candidate_search.results),
        "worker_sec": sum(result.wall_time_sec or 0.0 for run in runs for result in _results(settings, run)),
        "final_run": run_id,
    }
    record.write_answer(pareto.document(front, facts), front[0].trial.to_text())
    show_answer(settings, record, front, facts)
