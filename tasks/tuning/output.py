"""Terminal output of `inv tune`: the plan and the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from reports import formatting
from tasks.cli.terminal import FoldingTable, console
from tasks.settings.load import Settings
from tasks.settings.sources import display_path
from tasks.tuning.pareto import MeasuredCandidate, best_at_labels
from tasks.tuning.search import Surrogate, choose_wave
from tasks.tuning.search_state import TuneRecord


def show_plan(record: TuneRecord, workers: int) -> None:
    """Print how many candidates exist and fit, and the first wave."""
    limit = record.memory_limit()
    fitting_count = sum(map(limit.fits, record.candidates))
    limit_text = "no memory limit" if record.limit_bytes is None else f"within {record.limit_bytes / 2**30:.1f} GiB"
    print(
        f"plan: {len(record.candidates)} candidates of {record.longest} tokens, {fitting_count} fit ({limit_text}); "
        f"first wave over {formatting.count(workers, 'worker')}:"
    )
    table = _table("configuration", "predicted GiB", "useful positions")
    for candidate in choose_wave(Surrogate(record.candidates), {}, limit, workers):
        peak = limit.corrected_peak(candidate)
        size = "-" if peak is None or limit.limit_bytes is None else f"{peak / 2**30:.1f}"
        table.add_row(candidate.key, size, f"{100 * candidate.useful_share:.0f} %")
    console().print(table)
    print("nothing was changed")


def show_answer(
    settings: Settings, record: TuneRecord, front: Sequence[MeasuredCandidate], facts: Mapping[str, Any]
) -> None:
    """Print the Pareto front, the cost of the search, and the command that reruns the best configuration."""
    best_at = best_at_labels(front)
    table = _table("configuration", "useful\ntokens/s", "95 %", "GiB and\npredicted", "$ / M\nuseful", "best at")
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
    best = settings.results_folder / "tune" / record.tune_id / "best.json"
    print(f"rerun the best with `inv bench --trial-file {display_path(best)}`")


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f}"


def _table(*heads: str) -> Table:
    """Return an empty table whose last column wraps, and no other, to fit 80 characters."""
    table = FoldingTable(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=head != heads[-1], overflow="fold")
    return table
