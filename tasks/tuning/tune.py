"""`inv tune`: find the best configuration for these GPUs, this model and this data, and say how sure that is.

Observe (one worker surveys its GPU, the samples' lengths, and what would fit), plan (the candidates and the first wave,
which `--dry-run` prints), act (waves of short trials over the fleet, each an ordinary run in the results folder, then
the finalists in full), answer (a front of speed against memory, and a file that `inv bench --trials` takes). The rooms
of that are in `tasks.tuning`.
"""

from __future__ import annotations

from invoke.context import Context

from tasks.cli.lock import only_one
from tasks.connect.workers import survey, workers
from tasks.errors import Interrupted, Resumable, UsageError
from tasks.settings.load import load
from tasks.tuning import printed as shown
from tasks.tuning import record, waves
from tasks.tuning import survey as ground


def tune_fleet(context: Context, resume: str | None, memory_gib: str | None, *, dry_run: bool, plain: bool) -> None:
    settings = load(context)
    ground.check_recipes(settings)
    limit_gib = ground.limit_gib(settings, memory_gib)
    hosts = workers(settings)
    if resume:
        if memory_gib is not None:
            raise UsageError("tune: --resume goes on with a search's own limit; leave out --memory-gib")
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        found = record.find(settings.results_folder, name)
        ground.refuse_other_ground(found, survey(settings, hosts[0], []))
    else:
        found = ground.plan(settings, hosts, limit_gib)
    if dry_run:
        shown.show_plan(found, len(hosts))
        return
    with only_one(settings.results_folder, f"tune (search {found.tune_id})"):
        if not resume:
            found = record.create(settings.results_folder, found)
        try:
            waves.search(settings, found, hosts, plain=plain)
        except Interrupted:
            raise Interrupted(
                f"search {found.tune_id}: interrupted; `inv tune --resume={found.tune_id}` goes on with it"
            ) from None
        except Resumable as error:
            raise Resumable(f"{error}; `inv tune --resume={found.tune_id}` goes on with the search") from None
