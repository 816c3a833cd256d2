"""A new search: one worker surveys GPU, model and data, and the candidates follow from that.

Nothing is written here, and nothing runs but `python -m bench survey`.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from bench.records import ALL_LINEAR, ATTENTION_PROJECTIONS
from remote.hosts.host import Host
from tasks.cli.flags import number
from tasks.clients.workers import inspect, survey
from tasks.errors import ConfirmationRequired, UsageError
from tasks.settings.load import Settings
from tasks.tuning import space
from tasks.tuning.search_state import TuneRecord

CONTEXT_BYTES = 600 << 20  # of the driver and the kernels' modules, and what the allocator cannot hand out
SHORT_STEPS = {"gpu": (3, 6), "tiny": (1, 3)}  # warm-up and measured: enough to rank, a fifth of a full trial


def check_recipes(settings: Settings) -> None:
    """Raises UsageError for an unknown or missing recipe."""
    for name in settings.tune.recipes:
        if name not in space.WAYS:
            raise UsageError(f"tune.recipes: expected names of {', '.join(space.WAYS)}, found {name!r}")
    if not settings.tune.recipes:
        raise UsageError(f"tune.recipes: expected at least one of {', '.join(space.WAYS)}")


def limit_gib(settings: Settings, asked: str | None) -> float | None:
    """The memory limit: the flag's, else the settings'. Raises UsageError."""
    if asked is None:
        return settings.tune.memory_gib
    return number("tune: --memory-gib", asked, "a number above 0, at most 1024", lambda given: 0.0 < given <= 1024.0)


def plan(settings: Settings, hosts: Sequence[Host], limit: float | None) -> TuneRecord:
    """A new search within `limit` GiB, not yet on disk. Raises Resumable, Refused and UsageError."""
    bench, chosen = settings.bench, settings.tune
    inspect(settings, hosts)
    observed = survey(settings, hosts[0], [])
    longest = space.max_seq_len(
        observed["data"]["percentiles"], chosen.keep_percent, bench.profile, observed["model"]["positions"]
    )
    targets = ALL_LINEAR if chosen.lora_targets == "all-linear" else ATTENTION_PROJECTIONS
    candidates = space.candidates(
        model=settings.model.path,
        data=settings.data.path,
        profile=bench.profile,
        recipes=chosen.recipes,
        longest=longest,
        lora={"lora_rank": chosen.lora_rank, "lora_alpha": 2 * chosen.lora_rank, "lora_targets": targets},
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
        inputs={what: {"sha256": observed[what]["sha256"]} for what in ("model", "data")},
    )
    _refuse_too_little(record)
    return record


def refuse_other_inputs(record: TuneRecord, observed: Mapping[str, Any]) -> None:
    """Raises Refused where GPU, model or data are not those of the search: their figures cannot be ranked together."""
    gpu = None if observed["gpu"] is None or record.gpu is None else observed["gpu"]["name"]
    for what, before, now in (
        ("the GPU", record.gpu, gpu),
        ("the model (sha256)", record.model_sha256, observed["model"]["sha256"]),
        ("the data (sha256)", record.data_sha256, observed["data"]["sha256"]),
    ):
        if before != now:
            raise ConfirmationRequired(
                f"search {record.tune_id}: {what} was {before}, and is {now} now; their figures cannot be ranked "
                "together: begin a new search with `inv tune`"
            )


def _limit_bytes(limit: float | None, gpu: Mapping[str, Any] | None) -> int | None:
    """What a configuration may use; what the driver and fragments take is left out where the GPU's own size counts."""
    if limit is not None:
        return round(limit * 2**30)
    total = None if gpu is None else gpu["memory_bytes"]
    return None if total is None else total - CONTEXT_BYTES


def _refuse_too_little(record: TuneRecord) -> None:
    limit = record.memory()
    if any(limit.fits(candidate) for candidate in record.candidates):
        return
    smallest = min(record.candidates, key=lambda one: one.peak_bytes or 0)
    raise UsageError(
        f"tune.memory_gib: {(record.limit_bytes or 0) / 2**30:.3g} GiB is below the smallest configuration, "
        f"{smallest.key}, which needs about {(smallest.peak_bytes or 0) / 2**30:.3g} GiB; "
        "raise it, shorten samples (tune.keep_percent), or take a smaller model"
    )
