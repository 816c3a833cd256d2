"""Planning of a new search: have one worker survey GPU, model and data, and list the candidates.

Nothing is written, and only `python -m bench survey` runs.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from bench.records import ALL_LINEAR, ATTENTION_PROJECTIONS
from remote.hosts.base import Host
from tasks.cli.flags import parse_number
from tasks.clients.workers import inspect, survey
from tasks.errors import ConfirmationRequired, UsageError
from tasks.settings.load import Settings
from tasks.tuning import space
from tasks.tuning.search_state import TuneRecord

SHORT_STEPS = {"gpu": (3, 6), "tiny": (1, 3)}  # warm-up and measured: enough to rank, a fifth of a full trial


def check_recipes(settings: Settings) -> None:
    """Raise UsageError for an unknown or missing recipe."""
    for name in settings.tune.recipes:
        if name not in space.RECIPES:
            raise UsageError(f"tune.recipes: expected names of {', '.join(space.RECIPES)}, found {name!r}")
    if not settings.tune.recipes:
        raise UsageError(f"tune.recipes: expected at least one of {', '.join(space.RECIPES)}")


def memory_limit_gib(settings: Settings, flag: str | None) -> float | None:
    """Return the memory limit from the flag, else from the settings. Raises UsageError."""
    if flag is None:
        return settings.tune.memory_gib
    return parse_number(
        "tune: --memory-gib", flag, "a number above 0, at most 1024", lambda value: 0.0 < value <= 1024.0
    )


def plan(settings: Settings, hosts: Sequence[Host], limit: float | None) -> TuneRecord:
    """Plan a new search within `limit` GiB, not yet on disk.

    Raises RetryableError, ConfirmationRequired and UsageError.
    """
    bench, tune = settings.bench, settings.tune
    inspect(settings, hosts)
    observed = survey(settings, hosts[0], [])
    longest = space.max_seq_len(
        observed["data"]["percentiles"], tune.length_percentile, bench.profile, observed["model"]["positions"]
    )
    targets = ALL_LINEAR if tune.lora_targets == "all-linear" else ATTENTION_PROJECTIONS
    candidates = space.candidates(
        model=settings.model.path,
        data=settings.data.path,
        profile=bench.profile,
        recipes=tune.recipes,
        longest=longest,
        lora={"lora_rank": tune.lora_rank, "lora_alpha": 2 * tune.lora_rank, "lora_targets": targets},
        steps=SHORT_STEPS[bench.profile],
        seed=bench.seed,
        samples=observed["data"]["samples"],
    )
    predicted = survey(settings, hosts[0], [candidate.trial for candidate in candidates])["trials"]
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
        candidates=space.with_predictions(candidates, predicted),
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
    # A worker of an older image does not predict it.
    return None if gpu is None else gpu.get("largest_peak_bytes", gpu["memory_bytes"])


def _check_limit(record: TuneRecord) -> None:
    """Raise UsageError if no candidate fits."""
    limit = record.memory_limit()
    if any(limit.fits(candidate) for candidate in record.candidates):
        return
    smallest = min(record.candidates, key=lambda candidate: candidate.peak_bytes or 0)
    raise UsageError(
        f"tune.memory_gib: {(record.limit_bytes or 0) / 2**30:.3g} GiB is below the smallest configuration, "
        f"{smallest.key}, which needs about {(smallest.peak_bytes or 0) / 2**30:.3g} GiB",
        remedy="raise it, shorten samples (tune.length_percentile), or use a smaller model",
    )
