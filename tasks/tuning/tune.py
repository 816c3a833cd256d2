"""`inv tune`: find the best configuration for these GPUs, this model and this data, with intervals.

One worker surveys its GPU, the samples' lengths and the memory of each candidate. `--dry-run` prints the candidates and
the first wave. The search runs waves of short trials over the fleet, each an ordinary run in the results folder, then
the finalists in full. Its answer is a Pareto front of speed against memory, and a file for `inv bench --trial-file`.
"""

from invoke.context import Context

from tasks.cli.lock import acquire_lock
from tasks.clients.workers import fleet_hosts, survey
from tasks.errors import Interrupted, RetryableError, UsageError
from tasks.settings.load import load
from tasks.tuning import search_loop, search_state
from tasks.tuning.output import show_plan
from tasks.tuning.planning import check_recipes, check_same_inputs, memory_limit_gib, plan


def tune_fleet(context: Context, resume: str | None, memory_gib: str | None, *, dry_run: bool, plain: bool) -> None:
    """Start a search, print its plan, or resume one."""
    settings = load(context)
    check_recipes(settings)
    limit = memory_limit_gib(settings, memory_gib)
    hosts = fleet_hosts(settings)
    if resume:
        if memory_gib is not None:
            raise UsageError("tune: --resume uses the memory limit of the search", remedy="leave out --memory-gib")
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        search = search_state.find(settings.results_folder, name)
        check_same_inputs(search, survey(settings, hosts[0], []))
    else:
        search = plan(settings, hosts, limit)
    if dry_run:
        show_plan(search, len(hosts))
        return
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
