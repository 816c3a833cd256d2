"""What `inv tune` prints: the plan, and the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from reports import formatting
from tasks.cli.terminal import FoldingTable
from tasks.settings.load import Settings
from tasks.settings.sources import shown
from tasks.tuning.pareto import MeasuredCandidate, titles
from tasks.tuning.search import choose
from tasks.tuning.search_state import TuneRecord
from tasks.tuning.surrogate import Surrogate


def show_plan(record: TuneRecord, workers: int) -> None:
    """How many candidates there are and fit, and the first wave."""
    limit = record.memory()
    fitting = [candidate for candidate in record.candidates if limit.fits(candidate)]
    room = "no memory limit" if record.limit_bytes is None else f"within {record.limit_bytes / 2**30:.1f} GiB"
    print(
        f"plan: {len(record.candidates)} candidates of {record.longest} tokens, {len(fitting)} fit ({room}); "
        f"first wave over {formatting.count(workers, 'worker')}:"
    )
    table = _table("configuration", "predicted GiB", "useful positions")
    for one in choose(Surrogate(record.candidates), {}, limit, workers):
        peak = limit.corrected(one)
        size = "-" if peak is None or limit.limit_bytes is None else f"{peak / 2**30:.1f}"
        table.add_row(one.key, size, f"{100 * one.useful_share:.0f} %")
    Console().print(table)
    print("nothing was touched")


def show_answer(
    settings: Settings, record: TuneRecord, kept: Sequence[MeasuredCandidate], about: Mapping[str, Any]
) -> None:
    """The front as a table, what the search cost, and the command that runs the best again."""
    best_at = titles(kept)
    table = _table("configuration", "useful\ntokens/s", "95 %", "GiB and\npredicted", "$ / M\nuseful", "best at")
    for one in kept:
        rate, places = one.useful_tokens_per_sec, formatting.decimals(one.useful_tokens_per_sec)
        between = (
            "-" if one.interval is None else formatting.span(one.interval.low, one.interval.high, places).strip("()")
        )
        table.add_row(
            one.trial.trial_id,
            formatting.number(rate, places),
            between,
            f"{_gib(one.peak_vram_bytes)}  {_gib(one.predicted_bytes)}",
            "-" if one.usd_per_million_useful_tokens is None else formatting.number(one.usd_per_million_useful_tokens),
            best_at[one.trial.trial_id],
        )
    on = f"on {record.gpu}" if record.gpu else "on CPUs, profile tiny: these numbers say nothing about a GPU"
    print(
        f"search {record.tune_id}: {about['tried']} of {len(record.candidates)} candidates tried, "
        f"{about['worker_sec'] / 60:.1f} worker-minutes, {on}"
    )
    Console().print(table)
    best = settings.results_folder / "tune" / record.tune_id / "best.json"
    print(f"`inv bench --trials {shown(best)}` runs the best again")


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f}"


def _table(*heads: str) -> Table:
    """Within 80 characters the last column wraps, and no other."""
    table = FoldingTable(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=head != heads[-1], overflow="fold")
    return table
