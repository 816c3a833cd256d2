"""Execution of a search: waves of short trials over the fleet, the finalists in full, the answer.

Each wave is an ordinary run, and so are the finalists: it has a results folder, `inv collect report` reports it, and it
can be resumed. What the search knows is in the results of these runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.records import Trial
from bench.records.checksummed import ResultError
from bench.records.paths import RESULT_FILE, TRIALS_FOLDER
from bench.records.quality import QualityRecord, loss_fields
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from remote.hosts.base import Host
from reports import formatting
from reports.read import validation
from reports.statistics.types import Estimate
from reports.summary import quality as quality_text
from reports.summary.loss_verdicts import NOT_SHOWN, verdict_of
from reports.summary.quality import difference_text
from tasks.cli.terminal import console, plain_table
from tasks.errors import (
    ConfirmationRequired,
    RetryableError,
    SomeTrialsFailed,
    TaskFailed,
    escape_controls,
    translate_errors,
)
from tasks.fleet import runner
from tasks.fleet.plan import plan_trials
from tasks.fleet.run_store import BEST_FILE, SEARCH_FOLDER
from tasks.settings.load import Settings
from tasks.settings.sources import display_path
from tasks.tuning import pareto, quality
from tasks.tuning.search import Outcomes, Surrogate, choose_wave, finalists
from tasks.tuning.search_state import TuneRecord
from tasks.tuning.space import Candidate, MemoryLimit, TrialObservation, with_held_layers


def search(settings: Settings, record: TuneRecord, hosts: list[Host], *, plain: bool) -> None:
    """Run or resume this search to its answer.

    Raises RetryableError, Interrupted, ConfirmationRequired, and TaskFailed if no trial succeeded.
    """
    surrogate = Surrogate(record.candidates)
    for wave_number, run_id in enumerate(list(record.waves), start=1):
        _run_candidates(settings, record, f"tune-wave-{wave_number}", [], run_id, hosts, repeats=1, plain=plain)
    outcomes, limit = measured_outcomes(settings, record)
    while record.final is None and (wave := _next_wave(settings, record, surrogate, outcomes, limit, len(hosts))):
        known, name = len(outcomes), f"tune-wave-{len(record.waves) + 1}"
        run_id = _run_candidates(settings, record, name, wave, None, hosts, repeats=1, plain=plain)
        outcomes, limit = measured_outcomes(settings, record)
        if len(outcomes) == known:
            raise RetryableError(f"run {run_id}: none of its trials finished")
    chosen = finalists(surrogate, outcomes, limit, settings.tune.finalists)
    if not chosen:
        raise TaskFailed(
            f"search {record.tune_id}: no trial succeeded", remedy=f"see `inv collect report --run={record.waves[-1]}`"
        )
    if record.final is None:  # later a retried trial of a wave may change what would be chosen
        held_variant = with_held_layers(chosen[0], limit, record.depth)
        record.held_variants = [] if held_variant is None else [held_variant]
    chosen += record.held_variants
    repeats = settings.tune.repeats
    run_id = _run_candidates(settings, record, "tune-final", chosen, record.final, hosts, repeats=repeats, plain=plain)
    measured, results = _measure_finalists(settings, record, limit, run_id)
    losses = _compare_losses(settings, hosts, run_id, measured, results, plain=plain) if settings.tune.quality else None
    accepted = [candidate for candidate in measured if verdict_of(losses, candidate.trial) not in NOT_SHOWN]
    _print_withheld([candidate.trial for candidate in measured if candidate not in accepted], losses)
    accepted = accepted or _measured_references(settings, record, limit, results)
    _write_answer(settings, record, len(outcomes), run_id, accepted, losses)


def _next_wave(
    settings: Settings,
    record: TuneRecord,
    surrogate: Surrogate,
    outcomes: Outcomes,
    limit: MemoryLimit,
    workers: int,
) -> list[Candidate]:
    remaining = settings.tune.trials - len(outcomes)
    wave = choose_wave(surrogate, outcomes, limit, min(workers, remaining)) if remaining > 0 else []
    if not wave:
        reason = (
            "no other candidate is expected to be faster"
            if remaining > 0
            else f"the limit tune.trials = {settings.tune.trials} is reached"
        )
        print(f"search {record.tune_id}: {len(outcomes)} short trials; {reason}; measuring the finalists")
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
        run, folder, ledger = runner.write_plan_once(settings, run)
        record.add_run(run.run_id, is_final=is_final)  # write it before the start, so that a resume finds it
        runner.run_trials(settings, run, folder, ledger, hosts, plain=plain, notifies=False)
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


def _results(settings: Settings, record: TuneRecord, run_ids: Iterable[str]) -> Iterator[TrialResult]:
    """Yield the results of runs. Raises ConfirmationRequired for a damaged or impossible one, or one of another GPU."""
    folders = (settings.results_folder / run_id / TRIALS_FOLDER for run_id in run_ids)
    for path in (path for folder in folders for path in sorted(folder.glob(f"*/{RESULT_FILE}"))):
        remedy = f"remove {path}, then rerun `inv tune --resume={record.tune_id}`"
        with translate_errors(ConfirmationRequired, ResultError, remedy=remedy):
            result = TrialResult.read(path)
            if (fault := validation.result_fault(result)) is not None:
                raise ResultError(f"{path}: {fault}")
        gpu = result.fingerprint.get("gpu_name")
        if record.gpu is not None and gpu is not None and gpu != record.gpu:
            raise ConfirmationRequired(
                f"{result.worker} has another GPU ({gpu}) than the others ({record.gpu})",
                remedy=f"take it out of the fleet, {remedy}",
            )
        yield result


def measured_outcomes(settings: Settings, record: TuneRecord) -> tuple[dict[str, float | None], MemoryLimit]:
    """Return the outcomes of all waves so far, and the memory limit as their peaks correct it.

    Raises like `_results`.
    """
    by_key = {candidate.key: candidate for candidate in record.candidates}
    outcomes: dict[str, float | None] = {}
    observed = []
    for result in _results(settings, record, record.waves):
        candidate = by_key.get(result.trial.trial_id)
        if candidate is None:
            continue
        is_too_large = result.status is TrialStatus.OUT_OF_MEMORY
        peak_bytes = None if result.metrics is None or is_too_large else result.metrics.peak_vram_bytes
        if is_too_large or peak_bytes is not None:
            observed.append(TrialObservation(candidate=candidate, peak_bytes=peak_bytes))
        if is_too_large:
            outcomes[candidate.key] = None
        elif not result.status.is_external:
            metrics = result.metrics if result.status is TrialStatus.SUCCEEDED else None
            outcomes[candidate.key] = 0.0 if metrics is None else metrics.useful_tokens_per_sec
    return outcomes, record.memory_limit(observed)


def _measure_finalists(
    settings: Settings, record: TuneRecord, limit: MemoryLimit, run_id: str
) -> tuple[list[pareto.MeasuredCandidate], list[TrialResult]]:
    """Return the finalists of which no trial failed, fastest first, and the results of all runs.

    If a trial of each finalist failed, all that were measured are returned. Raises TaskFailed without any.
    """
    results = list(_results(settings, record, [run_id]))
    candidates = [*record.candidates, *record.held_variants]
    measured = _summarize(settings, record, limit, candidates, results, pareto.adjusted_rates(results))
    if not measured:
        raise TaskFailed(
            f"search {record.tune_id}: no finalist succeeded", remedy=f"see `inv collect report --run={run_id}`"
        )
    reliable = [each for each in measured if not each.failures] or measured
    for failing in (each for each in measured if each not in reliable):
        count = formatting.count(failing.failures, "trial")
        print(escape_controls(f"withheld {failing.trial.trial_id}: {count} did not succeed"))
    everything = list(_results(settings, record, record.runs))
    return sorted(reliable, key=lambda each: -each.useful_tokens_per_sec), everything


def _compare_losses(
    settings: Settings,
    hosts: list[Host],
    run_id: str,
    measured: Sequence[pareto.MeasuredCandidate],
    results: Sequence[TrialResult],
    *,
    plain: bool,
) -> QualityRecord | None:
    """Compare the held-out losses of the finalists with the reference, the fastest first, until one is at its loss."""

    def choose_next(losses: QualityRecord | None) -> quality.Comparison | None:
        for candidate in measured:
            trial = candidate.trial
            reference = quality.search_reference(trial)
            if not quality.is_settled(losses, trial, reference):
                return quality.Comparison(label=trial.trial_id, trial=trial, reference=reference, results=results)
            if verdict_of(losses, trial) not in NOT_SHOWN:
                return None
        return None

    return quality.compare_losses(settings, hosts, settings.results_folder / run_id, choose_next, plain=plain)


def _print_withheld(trials: Sequence[Trial], losses: QualityRecord | None) -> None:
    for trial in trials:
        check = None if losses is None else losses.find(trial)
        if check is not None:
            reason = f"not shown to be at the same loss ({difference_text(check)})"
            print(escape_controls(f"withheld {trial.trial_id}: {reason}"))


def _measured_references(
    settings: Settings, record: TuneRecord, limit: MemoryLimit, results: Sequence[TrialResult]
) -> list[pareto.MeasuredCandidate]:
    """Return the candidates that train as the reference does, from short trials if they were no finalists."""
    references = [
        candidate
        for candidate in record.candidates
        if loss_fields(candidate.trial) == loss_fields(quality.search_reference(candidate.trial))
    ]
    return _summarize(settings, record, limit, references, results, {})


def _summarize(
    settings: Settings,
    record: TuneRecord,
    limit: MemoryLimit,
    candidates: Iterable[Candidate],
    results: Sequence[TrialResult],
    rates: Mapping[str, Estimate],
) -> list[pareto.MeasuredCandidate]:
    """Return the candidates with a successful result; `rates` are those on the mean worker, by key."""
    summaries = (
        pareto.summarize(
            candidate.full_trial(settings),
            [result for result in results if result.trial.trial_id == candidate.key],
            limit.corrected_peak(candidate) if record.limit_bytes is not None else None,
            settings.cost.price_usd_per_gpu_hour,
            rates.get(candidate.key),
        )
        for candidate in candidates
    )
    return [summary for summary in summaries if summary is not None]


def _write_answer(
    settings: Settings,
    record: TuneRecord,
    tried: int,
    run_id: str,
    accepted: Sequence[pareto.MeasuredCandidate],
    losses: QualityRecord | None,
) -> None:
    """Write and print the answer. Raises SomeTrialsFailed if no candidate is at the reference's loss."""
    loss_runs = [run for check in losses.checks for run in check.run_ids] if losses else []
    facts = {
        "tune_id": record.tune_id,
        "gpu": record.gpu,
        "tried": tried,
        "worker_sec": sum(
            result.wall_time_sec or 0.0 for result in _results(settings, record, [*record.runs, *loss_runs])
        ),
        "final_run": run_id,
    }
    if not accepted:  # an earlier answer no longer holds
        record.remove_answer()
    failures = [check.reason for check in losses.checks if check.reason is not None] if losses else []
    if not accepted and failures:
        raise SomeTrialsFailed(
            f"search {record.tune_id}: the losses of the finalists could not be compared: {failures[0]}; then resume "
            f"it with `inv tune --resume={record.tune_id}`"
        )
    if not accepted:
        raise SomeTrialsFailed(
            f"search {record.tune_id}: no finalist was shown to be at the loss of the reference; allow more pairs "
            f"(quality.max_pairs) and resume it with `inv tune --resume={record.tune_id}`, or add `reference` to "
            "tune.recipes and rerun `inv tune`"
        )
    front = pareto.front(accepted)
    claim = quality_text.claim(losses, front[0].trial)
    tied = pareto.not_shown_slower(accepted, _results(settings, record, [run_id]))
    document = pareto.document(front, facts) | {"loss": claim or None, "not_shown_slower": tied}
    record.write_answer(document, front[0].trial.to_text())
    show_answer(settings, record, front, facts)
    if tied:
        print(f"not shown to be slower: {', '.join(tied)}; raise tune.repeats to tell them apart")
    if claim:
        print(escape_controls(f"{front[0].trial.trial_id} is {claim}, compared with the reference"))


def show_answer(
    settings: Settings, record: TuneRecord, front: Sequence[pareto.MeasuredCandidate], facts: Mapping[str, Any]
) -> None:
    """Print the Pareto front, the cost of the search, and the command that reruns the best configuration."""
    best_at = pareto.best_at_labels(front)
    table = plain_table("configuration", "useful\ntokens/s", "95 %", "GiB and\npredicted", "$ / M\nuseful", "best at")
    for candidate in front:
        rate, digits = candidate.useful_tokens_per_sec, formatting.significant_decimals(candidate.useful_tokens_per_sec)
        interval = (
            "-"
            if candidate.interval is None
            else formatting.span(candidate.interval.low, candidate.interval.high, digits).strip("()")
        )
        table.add_row(
            candidate.trial.trial_id,
            formatting.number(rate, digits),
            interval,
            f"{_gib(candidate.peak_vram_bytes)}  {_gib(candidate.predicted_bytes)}",
            "-"
            if candidate.usd_per_million_useful_tokens is None
            else formatting.number(candidate.usd_per_million_useful_tokens),
            best_at[candidate.trial.trial_id],
        )
    device = f"on {record.gpu}" if record.gpu else "on CPUs, profile tiny: these numbers say nothing about a GPU"
    print(
        f"search {record.tune_id}: {facts['tried']} of {len(record.candidates)} candidates tried, "
        f"{facts['worker_sec'] / 60:.1f} worker-minutes, {device}"
    )
    console().print(table)
    best = settings.results_folder / SEARCH_FOLDER / record.tune_id / BEST_FILE
    print(f"train with the best: `inv train --from={record.tune_id}`")
    print(f"rerun it: `inv bench --trial-file {display_path(best)}`")


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f}"
