"""`inv tune`: find the best configuration for these GPUs, this model and this data, and say how sure that is.

Observe (one worker surveys its GPU, the samples' lengths, and what would fit), plan (the candidates and the first wave,
which `--dry-run` prints), act (waves of short trials over the fleet, each an ordinary run in the results folder, then
the finalists in full), answer (a front of speed against memory, and a file that `inv bench --trials` takes).
"""

from invoke.context import Context

from tasks.cli.lock import acquire_lock
from tasks.clients.workers import survey, workers
from tasks.errors import Interrupted, RetryableError, UsageError
from tasks.settings.load import load
from tasks.tuning import search_loop, search_state
from tasks.tuning.output import show_plan
from tasks.tuning.planning import check_recipes, limit_gib, plan, refuse_other_inputs


def tune_fleet(context: Context, resume: str | None, memory_gib: str | None, *, dry_run: bool, plain: bool) -> None:
    settings = load(context)
    check_recipes(settings)
    limit = limit_gib(settings, memory_gib)
    hosts = workers(settings)
    if resume:
        if memory_gib is not None:
            raise UsageError("tune: --resume goes on with a search's own limit; leave out --memory-gib")
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        search = search_state.find(settings.results_folder, name)
        refuse_other_inputs(search, survey(settings, hosts[0], []))
    else:
        search = plan(settings, hosts, limit)
    if dry_run:
        show_plan(search, len(hosts))
        return
    with acquire_lock(settings.results_folder, f"tune (search {search.tune_id})"):
        if not resume:
            search = search_state.create(settings.results_folder, search)
        again = f"`inv tune --resume={search.tune_id}` goes on with"
        try:
            search_loop.search(settings, search, hosts, plain=plain)
        except Interrupted:
            raise Interrupted(f"search {search.tune_id}: interrupted; {again} it") from None
        except RetryableError as error:
            raise RetryableError(f"{error}; {again} the search") from None
