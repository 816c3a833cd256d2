"""`inv tune`: find the best configuration for these GPUs, this model and this data, with intervals.

One worker surveys its GPU, the samples' lengths and the memory of each candidate. `--dry-run` prints the candidates and
the first wave. The search runs waves of short trials over the fleet, each an ordinary run in the results folder, then
the finalists in full, and compares the held-out loss of the fastest with the reference. Its answer is a Pareto front of
speed against memory, and a file for `inv bench --trial-file`.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from invoke.context import Context

from bench.records import schema
from bench.records.units import format_gib, format_percent
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from remote.hosts.base import Host
from reports import formatting
from tasks.cli.answer import Answer
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, plain_table
from tasks.clients.workers import fleet_hosts, inspect, survey
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, UsageError
from tasks.fleet.plan import input_trial
from tasks.settings.load import Settings, load
from tasks.tuning import quality, search_loop, search_state, space
from tasks.tuning.search import Surrogate, choose_wave
from tasks.tuning.search_state import TuneRecord
from tasks.tuning.space import Candidate

SHORT_STEPS = {"gpu": (3, 6), "tiny": (1, 3)}  # warm-up and measured: enough to rank, a fifth of a full trial


def tune_fleet(
    context: Context, resume: str | None, memory_gib: float | None, *, dry_run: bool, plain: bool
) -> Answer | None:
    """Start a search, return its plan, or resume one."""
    settings = load(context)
    check_recipes(settings)
    limit = memory_gib or settings.tune.memory_gib
    hosts = fleet_hosts(settings)
    if resume:
        if memory_gib is not None:
            raise UsageError("tune: --resume uses the memory limit of the search", remedy="leave out --memory-gib")
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        search = search_state.find(settings.results_folder, name)
        check_same_inputs(search, survey(settings, hosts[0], [input_trial(settings)]))
    else:
        search = plan(settings, hosts, limit)
    power = quality.describe_power(settings, settings.model.path, settings.data.path)
    if dry_run:
        wave = choose_wave(Surrogate(search.candidates), {}, search.memory_limit(), len(hosts))
        show_plan(search, wave, len(hosts))
        print(*([power] if settings.tune.quality else []), "nothing was changed", sep="\n")
        return Answer(data=_plan_document(search, wave))
    if settings.tune.quality:
        print(power)
    with acquire_lock(settings.results_folder, f"tune (search {search.tune_id})"):
        if not resume:
            search = search_state.create(settings.results_folder, search)
        command = f"`inv tune --resume={search.tune_id}`"
        try:
            search_loop.search(settings, search, hosts, plain=plain)
        except Interrupted as error:
            raise Interrupted(f"search {search.tune_id}: interrupted", remedy=f"resume it with {command}") from error
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


def plan(settings: Settings, hosts: Sequence[Host], limit: float | None) -> TuneRecord:
    """Plan a new search within `limit` GiB; nothing is written, and only `python -m bench survey` runs.

    Raises RetryableError, ConfirmationRequired and UsageError.
    """
    bench, tune = settings.bench, settings.tune
    inputs = input_trial(settings)
    inspect(settings, hosts, [inputs])
    observed = survey(settings, hosts[0], [inputs])
    longest = space.max_seq_len(
        observed["data"]["percentiles"], tune.length_percentile, bench.profile, observed["model"]["positions"]
    )
    targets = ALL_LINEAR if tune.lora_targets == "all-linear" else ATTENTION_PROJECTIONS
    candidates = space.candidates(
        model=settings.model.path,
        data=settings.data.path,
        data_options=inputs.data_options,
        profile=bench.profile,
        recipes=tune.recipes,
        longest=longest,
        lora={"lora_rank": tune.lora_rank, "lora_alpha": 2 * tune.lora_rank, "lora_targets": targets},
        steps=SHORT_STEPS[bench.profile],
        seed=bench.seed,
        samples=observed["data"]["samples"],
    )
    surveyed = survey(settings, hosts[0], [candidate.trial for candidate in candidates])
    try:
        predicted = space.with_predictions(candidates, surveyed["trials"])
        candidates = [schema.from_json(Candidate, schema.to_json(candidate)) for candidate in predicted]
    except (KeyError, ValueError, TypeError) as error:
        remedy = "check that its image has this version of bench"
        raise RetryableError(f"the worker's survey cannot be read: {error}", remedy=remedy) from error
    gpu = observed["gpu"] if bench.profile == "gpu" else None
    record = TuneRecord(
        tune_id=f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%d-%H%M%S}-tune",
        gpu=None if gpu is None else gpu["name"],
        model_sha256=observed["model"]["sha256"],
        data_sha256=observed["data"]["sha256"],
        longest=longest,
        depth=observed["model"]["depth"],
        limit_bytes=_limit_bytes(limit, gpu),
        settings=settings.public(),
        candidates=candidates,
        inputs={name: {"sha256": observed[name]["sha256"]} for name in ("model", "data")},
    )
    _check_limit(record)
    return record


def check_same_inputs(record: TuneRecord, observed: Mapping[str, Any]) -> None:
    """Raise ConfirmationRequired if GPU, model or data differ from the search's: the figures are not comparable."""
    gpu = None if observed["gpu"] is None or record.gpu is None else observed["gpu"]["name"]
    for label, planned, current in (
        ("the GPU", record.gpu, gpu),
        ("the model (sha256)", record.model_sha256, observed["model"]["sha256"]),
        ("the data (sha256)", record.data_sha256, observed["data"]["sha256"]),
    ):
        if planned != current:
            raise ConfirmationRequired(
                f"search {record.tune_id}: {label} was {planned} and is {current} now",
                remedy="start a new search with `inv tune`, because their figures cannot be ranked together",
            )


def _limit_bytes(limit: float | None, gpu: Mapping[str, Any] | None) -> int | None:
    """Return the largest peak of a configuration: the limit, else what fits the GPU as its worker predicts."""
    if limit is not None:
        return round(limit * 2**30)
    return None if gpu is None else gpu["largest_peak_bytes"]


def _check_limit(record: TuneRecord) -> None:
    """Raise UsageError if no candidate fits."""
    limit = record.memory_limit()
    if any(limit.fits(candidate) for candidate in record.candidates):
        return
    smallest = min(record.candidates, key=lambda candidate: candidate.peak_bytes or 0)
    raise UsageError(
        f"tune.memory_gib: {format_gib(record.limit_bytes or 0, 3)} is below the smallest configuration, "
        f"{smallest.key}, which needs about {format_gib(smallest.peak_bytes or 0, 3)}",
        remedy="raise it, shorten samples (tune.length_percentile), or use a smaller model",
    )


def _plan_document(record: TuneRecord, wave: Sequence[Candidate]) -> dict[str, Any]:
    """Return a plan as JSON for programs."""
    limit = record.memory_limit()
    return {
        "candidates": len(record.candidates),
        "fitting": sum(map(limit.fits, record.candidates)),
        "max_seq_len": record.longest,
        "limit_bytes": record.limit_bytes,
        "first_wave": [
            {"configuration": each.key, "peak_bytes": limit.corrected_peak(each), "useful_share": each.useful_share}
            for each in wave
        ],
    }


def show_plan(record: TuneRecord, wave: Sequence[Candidate], workers: int) -> None:
    """Print how many candidates exist and fit, and the first wave."""
    limit = record.memory_limit()
    fitting_count = sum(map(limit.fits, record.candidates))
    limit_text = "no memory limit" if record.limit_bytes is None else f"within {format_gib(record.limit_bytes)}"
    print(
        f"plan: {len(record.candidates)} candidates of {record.longest} tokens, {fitting_count} fit ({limit_text}); "
        f"first wave over {formatting.count(workers, 'worker')}:"
    )
    table = plain_table("configuration", "predicted GiB", "useful positions")
    for candidate in wave:
        peak = limit.corrected_peak(candidate)
        size = "-" if peak is None or limit.limit_bytes is None else f"{peak / 2**30:.1f}"
        table.add_row(candidate.key, size, format_percent(candidate.useful_share))
    console().print(table)
