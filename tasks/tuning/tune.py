"""`inv tune`: find the fastest configuration for these GPUs, this model and this data, at the loss of the reference.

One worker surveys its GPU, the samples' lengths, and memory and speed of each candidate; `--dry-run` prints what would
be measured. A search is two ordinary runs. The first, whose id is the search's, measures the best candidates by short
trials. The second measures the fastest of them and the baseline in full, compares held-out losses as `inv bench
--quality` does, and recommends one, which becomes BEST_FILE of the first. Both are resumed from their folders.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records import Trial, schema
from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.trial import SCALES
from bench.records.units import format_gib, format_percent
from bench.records.validation import LORA_TARGETS
from remote.fleet.ledger import Ledger
from remote.hosts.host_protocol import Host
from reports import formatting
from reports.read.loaded_run import ReportError
from reports.read.run_folder import load as load_run
from reports.summary import sentences
from reports.summary.prices import PriceError
from reports.summary.summarize import summarize
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, plain_table
from tasks.clients.workers import bench_program, fleet_hosts
from tasks.errors import (
    ConfirmationRequired,
    Interrupted,
    RetryableError,
    SomeTrialsFailed,
    TaskFailed,
    UsageError,
    escape_controls,
    translate_errors,
)
from tasks.fleet import runner
from tasks.fleet.plan import BenchRequest, input_trial, plan_run
from tasks.fleet.pricing import pricing
from tasks.fleet.run_store import BEST_FILE, TUNE, newest_run, open_run
from tasks.settings.layers import Settings, load
from tasks.settings.sources import display_path
from tasks.tuning import loss_pairs, space
from tasks.tuning.space import Candidate, Prediction

SHORT_STEPS = {"gpu": (3, 6), "tiny": (1, 3)}  # warm-up and measured: enough to rank, a fifth of a full trial
TUNED = "tuned"  # suite of a search's second run


def tune_fleet(
    context: Context, resume: str | None, memory_gib: float | None, *, dry_run: bool, plain: bool
) -> CommandResult | None:
    """Start a search, return its plan, or resume one."""
    settings = load(context)
    check_recipes(settings)
    hosts = fleet_hosts(settings)
    if resume:
        if memory_gib is not None:
            raise UsageError("tune: --resume uses the memory limit of the search", remedy="leave out --memory-gib")
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        search, folder = find_search(settings, name)
        check_same_inputs(search, bench_program(settings).survey(hosts[0], [input_trial(settings)]))
        if dry_run:
            with runner.ledger_errors(search):
                unfinished = list(Ledger(folder / LEDGER_FILE).open_trials())
            lines = [f"search {search.run_id}: {len(unfinished)} of {len(search.planned)} short trials are open"]
            return plan_result(lines, run=search.run_id, unfinished=unfinished)
    else:
        candidates, limit, search = plan(settings, hosts, memory_gib or settings.tune.memory_gib)
        if dry_run:
            return _plan_answer(settings, candidates, limit, search)
    if settings.tune.quality:
        print(loss_pairs.describe_power(settings, settings.model.path, settings.data.path))
    with acquire_lock(settings.results_folder, f"tune (search {search.run_id})"):
        if not resume:
            search = runner.write_plan(settings.results_folder, search)
            folder = settings.results_folder / search.run_id
        command = f"`inv tune --resume={search.run_id}`"
        try:
            _search(settings, search, folder, hosts, plain=plain)
        except Interrupted as error:
            raise Interrupted(f"search {search.run_id}: interrupted", remedy=f"resume it with {command}") from error
        except RetryableError as error:
            raise RetryableError.from_error(error, remedy=f"resume the search with {command}") from error
    return None


def check_recipes(settings: Settings) -> None:
    """Raise UsageError for an unknown or missing recipe."""
    for name in settings.tune.recipes:
        if name not in space.RECIPES:
            raise UsageError(f"tune.recipes: expected names of {', '.join(space.RECIPES)}, found {name!r}")
        if not settings.tune.quality and space.RECIPES[name].get("matmul", "bf16") != "bf16":
            raise UsageError(
                f"tune.quality: false, but tune.recipes has {name}, whose products in 8 bits need a held-out loss",
                remedy="set it to true, or remove the recipe",
            )
    if not settings.tune.recipes:
        raise UsageError(f"tune.recipes: expected at least one of {', '.join(space.RECIPES)}")


def find_search(settings: Settings, name: str | None) -> tuple[RunRecord, Path]:
    """Return plan and folder of the search with this id, or of the newest. Raises UsageError."""
    newest = newest_run(settings.results_folder, TUNE)
    if newest is None:
        raise UsageError(f"{settings.results_folder}: there is no search yet", remedy="start one with `inv tune`")
    run, folder = open_run(settings, name or newest)
    if run.suite != TUNE:
        raise UsageError(f"run {run.run_id} was not started by `inv tune`", remedy=f"the newest search is {newest}")
    return run, folder


def plan(
    settings: Settings, hosts: Sequence[Host], limit_gib: float | None
) -> tuple[list[Candidate], int | None, RunRecord]:
    """Plan a search within `limit_gib`: its candidates, the limit in bytes, and the run of short trials.

    Nothing is written, and only `python -m bench survey` runs. Raises RetryableError, ConfirmationRequired and
    UsageError.
    """
    bench, tune, train = settings.bench, settings.tune, settings.train
    inputs = input_trial(settings)
    bench_program(settings).inspect(hosts, [inputs])
    observed = bench_program(settings).survey(hosts[0], [inputs])
    longest = space.max_seq_len(observed["data"]["percentiles"], bench.profile, observed["model"]["positions"])
    targets = LORA_TARGETS[train.lora_targets]
    trials = space.trials(
        model=settings.model.path,
        data=settings.data.path,
        data_options=inputs.data_options,
        profile=bench.profile,
        recipes=tune.recipes,
        longest=longest,
        lora={"lora_rank": train.lora_rank, "lora_alpha": train.lora_alpha, "lora_targets": targets},
        steps=SHORT_STEPS[bench.profile],
        seed=bench.seed,
        samples=observed["data"]["samples"],
    )
    candidates = _predict(trials, bench_program(settings).survey(hosts[0], trials))
    gpu = observed["gpu"] if bench.profile == "gpu" else None
    limit = _limit_bytes(limit_gib, gpu)
    _check_limit(candidates, limit)
    workers = len(hosts)
    # The workers that would be idle at the end measure one candidate more.
    chosen = space.choose(candidates, limit, math.ceil(tune.trials / workers) * workers)
    facts = {
        **{name: {"sha256": observed[name]["sha256"]} for name in ("model", "data")},
        "gpu": None if gpu is None else gpu["name"],
        "limit_bytes": limit,
    }
    names, short = [host.name for host in hosts], [candidate.trial for candidate in chosen]
    request = BenchRequest(suite=TUNE, trials=short, workers=names, spread="shard")
    return candidates, limit, plan_run(settings, request, facts)


def check_same_inputs(search: RunRecord, observed: Mapping[str, Any]) -> None:
    """Raise ConfirmationRequired if GPU, model or data differ from the search's: the figures are not comparable."""
    facts = search.provenance["inputs"]
    gpu = None if observed["gpu"] is None or facts["gpu"] is None else observed["gpu"]["name"]
    for label, planned, current in (
        ("the GPU", facts["gpu"], gpu),
        ("the model (sha256)", facts["model"]["sha256"], observed["model"]["sha256"]),
        ("the data (sha256)", facts["data"]["sha256"], observed["data"]["sha256"]),
    ):
        if planned != current:
            raise ConfirmationRequired(
                f"search {search.run_id}: {label} was {planned} and is {current} now",
                remedy="start a new search with `inv tune`, because their figures cannot be ranked together",
            )


def _predict(trials: Sequence[Trial], surveyed: Mapping[str, Any]) -> list[Candidate]:
    """Return the trials with a survey's predictions, without those that have none. Raises UsageError if all have none.

    Raises RetryableError if the survey cannot be read.
    """
    try:
        pairs = zip(trials, surveyed["trials"], strict=True)
        candidates = [
            Candidate(trial=trial, predicted=schema.from_json(Prediction, each))
            for trial, each in pairs
            if each is not None
        ]
    except (KeyError, ValueError, TypeError) as error:
        remedy = "check that its image has this version of bench"
        raise RetryableError(f"the worker's survey cannot be read: {error}", remedy=remedy) from error
    if not candidates:
        raise UsageError("tune.recipes: none of them is supported for this model", remedy="add stock")
    return candidates


def _limit_bytes(limit_gib: float | None, gpu: Mapping[str, Any] | None) -> int | None:
    """Return the largest peak of a configuration: the limit, else what fits the GPU as its worker predicts."""
    if limit_gib is not None:
        return round(limit_gib * 2**30)
    return None if gpu is None else gpu["largest_peak_bytes"]


def _check_limit(candidates: Sequence[Candidate], limit: int | None) -> None:
    """Raise UsageError if no candidate fits."""
    smallest = min(candidates, key=lambda candidate: candidate.predicted.peak_bytes)
    if not space.fits(smallest.predicted.peak_bytes, limit):
        raise UsageError(
            f"tune.memory_gib: {format_gib(limit or 0, 3)} is below the smallest configuration, "
            f"{smallest.trial.trial_id}, which needs about {format_gib(smallest.predicted.peak_bytes, 3)}",
            remedy="raise it, shorten samples, or use a smaller model",
        )


def _plan_answer(
    settings: Settings, candidates: Sequence[Candidate], limit: int | None, search: RunRecord
) -> CommandResult:
    """Print how many candidates exist and fit, and those to measure; return the plan."""
    by_name = {candidate.trial.name: candidate for candidate in candidates}
    chosen = [by_name[planned.trial.name] for planned in search.planned]
    fitting = sum(space.fits(candidate.predicted.peak_bytes, limit) for candidate in candidates)
    longest = candidates[0].trial.max_seq_len
    limit_text = "no memory limit" if limit is None else f"within {format_gib(limit)}"
    print(
        f"plan: {len(candidates)} candidates of {longest} tokens, {fitting} fit ({limit_text}); short trials over "
        f"{formatting.count(len(search.workers), 'worker')}:"
    )
    table = plain_table("configuration", "predicted GiB", "useful positions")
    for candidate in chosen:
        size = "-" if limit is None else f"{candidate.predicted.peak_bytes / 2**30:.1f}"
        table.add_row(candidate.trial.trial_id, size, format_percent(candidate.predicted.useful_share))
    console().print(table)
    power = loss_pairs.describe_power(settings, settings.model.path, settings.data.path)
    print(*([power] if settings.tune.quality else []), "nothing was changed", sep="\n")
    trials = [
        {
            "configuration": candidate.trial.trial_id,
            "peak_bytes": candidate.predicted.peak_bytes,
            "useful_share": candidate.predicted.useful_share,
        }
        for candidate in chosen
    ]
    facts = {"candidates": len(candidates), "fitting": fitting, "max_seq_len": longest, "limit_bytes": limit}
    return CommandResult(data={**facts, "trials": trials})


def _search(settings: Settings, search: RunRecord, folder: Path, hosts: list[Host], *, plain: bool) -> None:
    """Run or resume both runs of a search, and write its answer.

    Raises RetryableError, Interrupted, ConfirmationRequired, and TaskFailed if no trial succeeded.
    """
    final = _second_run(settings, search.run_id)
    if final is None:
        _run(settings, search.run_id, hosts, plain=plain)
        trials = choose_finalists(settings, hosts[0], search, measured_trials(search, folder))
        facts = {**search.provenance["inputs"], "search": search.run_id}
        request = BenchRequest(
            suite=TUNED,
            trials=trials,
            workers=[host.name for host in hosts],
            spread="replicate",
            repeats=settings.tune.repeats,
            quality=settings.tune.quality,
        )
        run = runner.write_plan(settings.results_folder, plan_run(settings, request, facts))
        final = settings.results_folder / run.run_id
    _run(settings, final.name, hosts, plain=plain)
    if settings.tune.quality:
        loss_pairs.compare_run(settings, final, hosts, plain=plain)
    write_answer(settings, search, folder, final)


def _second_run(settings: Settings, search_id: str) -> Path | None:
    """Return the folder of a search's second run; None before it is planned."""
    for path in settings.results_folder.glob(f"*-{TUNED}*/{RUN_FILE}"):
        with contextlib.suppress(ResultError):
            if RunRecord.read(path).provenance.get("inputs", {}).get("search") == search_id:
                return path.parent
    return None


def _run(settings: Settings, run_id: str, hosts: list[Host], *, plain: bool) -> None:
    """Run or resume one of a search's runs. A trial that fails or does not fit is a result, too."""
    try:
        runner.resume(settings, run_id, hosts, plain=plain, notifies=False)
    except SomeTrialsFailed as error:
        print(error)


def measured_trials(search: RunRecord, folder: Path) -> list[TrialResult]:
    """Return the results of the short trials that succeeded, fastest first.

    Raises ConfirmationRequired for a damaged or impossible result or one of another GPU, and TaskFailed without any
    success, RetryableError if a resume may have one.
    """
    with translate_errors(UsageError, ReportError):
        run = load_run(folder)
    again = f"then rerun `inv tune --resume={search.run_id}`"
    for damaged in run.rejected:
        if Path(damaged.file).name == RESULT_FILE:
            path = folder / damaged.file
            raise ConfirmationRequired(f"{path}: {damaged.reason}", remedy=f"remove {path}, {again}")
    expected = search.provenance["inputs"]["gpu"]
    for result in run.results:
        gpu = result.fingerprint.get("gpu_name")
        if expected is not None and gpu is not None and gpu != expected:
            path = folder / TRIALS_FOLDER / result.trial_id
            raise ConfirmationRequired(
                f"{result.worker} has another GPU ({gpu}) than the first worker ({expected})",
                remedy=f"take it out of the fleet, remove {path}, {again}",
            )
    succeeded = [result for result in run.results if result.status is TrialStatus.SUCCEEDED]
    if not succeeded and (run.missing or any(result.status.is_external for result in run.results)):
        raise RetryableError(f"run {search.run_id}: none of its trials finished")
    if not succeeded:
        raise TaskFailed(
            f"search {search.run_id}: no trial succeeded", remedy=f"see `inv collect report --run={search.run_id}`"
        )
    return sorted(
        succeeded, key=lambda result: 0.0 if result.metrics is None else -result.metrics.useful_tokens_per_sec
    )


def choose_finalists(settings: Settings, host: Host, search: RunRecord, measured: Sequence[TrialResult]) -> list[Trial]:
    """Return the trials of the second run: the baseline, the fastest of each precision, and one with held layers.

    `measured` are short trials, fastest first. If products in 8 bits are not at the loss of the reference, the fastest
    with others is named.
    """
    scale, bench = SCALES[search.profile], settings.bench
    steps: dict[str, Any] = {
        "reason": "the fastest of the search",
        "warmup_steps": scale.warmup_steps if bench.warmup_steps is None else bench.warmup_steps,
        "measured_steps": scale.measured_steps if bench.measured_steps is None else bench.measured_steps,
    }
    by_precision: dict[str, Trial] = {}
    for result in measured:
        by_precision.setdefault(result.trial.matmul, replace(result.trial, **steps))
    fastest = next(iter(by_precision.values()))
    facts = bench_program(settings).survey(host, [input_trial(settings)])
    asked = [fastest, *space.baselines(fastest, facts["data"]["samples"])]
    (candidate, *published) = _predict(asked, bench_program(settings).survey(host, asked))
    limit = search.provenance["inputs"]["limit_bytes"]
    fitting = (each.trial for each in published if space.fits(each.predicted.peak_bytes, limit))
    baseline = next(fitting, published[-1].trial)
    peak = measured[0].metrics.peak_vram_bytes if measured[0].metrics is not None else None
    predicted = replace(candidate.predicted, peak_bytes=peak or candidate.predicted.peak_bytes)
    held = space.with_held_layers(fastest, predicted, limit, facts["model"]["depth"])
    return [baseline, *by_precision.values(), *([] if held is None else [held])]


def write_answer(settings: Settings, search: RunRecord, folder: Path, final: Path) -> None:
    """Write and print the recommended configuration.

    Raises SomeTrialsFailed if none is: nothing was measured, or losses could not be compared.
    """
    with translate_errors(UsageError, ReportError, PriceError):
        summary = summarize(load_run(final), pricing(settings))
    row, losses = summary.best_row, summary.quality
    failures = [check.reason for check in losses.checks if check.reason is not None] if losses else []
    is_compared = summary.recommended_label is not None or not settings.tune.quality
    best = folder / BEST_FILE
    if row is None or not is_compared or (row.is_baseline and failures):
        best.unlink(missing_ok=True)  # an earlier answer no longer holds
        reason = f"the losses could not be compared: {failures[0]}" if failures else "no configuration is recommended"
        raise SomeTrialsFailed(
            f"search {search.run_id}: {reason}; see `inv collect report --run={final.name}`, then resume it with "
            f"`inv tune --resume={search.run_id}`"
        )
    write_atomic(best, row.trial.to_text().encode())
    print(escape_controls(sentences.spell_out(sentences.recommendation(summary))))
    print(f"train with it: `inv train --from={search.run_id}`")
    print(f"rerun it: `inv bench --trial-file {display_path(best)}`")
    print(f"all numbers: `inv collect report --run={final.name}`")
