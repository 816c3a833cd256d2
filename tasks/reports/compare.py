"""`inv compare A B`: show what became faster or slower between runs, on the terminal and for CI jobs.

Exit codes: 0 same or faster, 1 slower beyond the tolerance and the effect of the day, 2 not comparable (different
machines or inputs, no common configuration), 5 undecided (too much noise, a single process, or perhaps the day).
"""

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from invoke.context import Context
from rich.table import Table
from rich.text import Text

from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import RunRecord
from reports import formatting
from reports.comparison import compare as comparing
from reports.comparison.compare import ELAPSED, STEADY, ComparedRow, Comparison, to_json
from reports.read import measurements
from reports.read.loaded_run import ReportError, ReportWriteError, Run, make_report_folder
from reports.read.run_folder import load as load_run
from reports.training import comparison
from tasks.cli.command_result import CommandResult
from tasks.cli.flags import parse_names
from tasks.cli.terminal import console, ruled_table
from tasks.errors import RetryableError, TaskFailed, Undecided, UsageError, file_errors, translate_errors
from tasks.fleet.run_store import find_run, is_training
from tasks.settings.layers import load
from tasks.settings.sources import display_path

COMPARE_FILE = "compare.json"
_MAX_EARLIER_RUNS = 20
_METRIC_LABELS = {ELAPSED: "useful tokens/s", STEADY: "useful tokens/s, steady"}


def compare_runs(
    context: Context,
    first: str,
    second: str,
    *,
    allow: Sequence[str],
    tolerance: float,
    out: str | None,
) -> CommandResult:
    """Compare the second run, or runs with commas between them, with the first. `tolerance` is in percent."""
    settings = load(context)
    allowed = parse_names("--allow", allow, comparing.ALLOWABLE)
    sides = [[find_run(settings.results_folder, name) for name in names.split(",")] for names in (first, second)]
    folders = [*sides[0], *sides[1]]
    if any(map(is_training, folders)):
        compared = compare_trainings(folders)
        higher = TaskFailed(f"the held-out loss of {folders[1].name} is higher")
        data = {**asdict(compared), "verdict": compared.verdict}
        return CommandResult(
            kind="comparison.trainings", data=data, failure=higher if compared.verdict == "higher" else None
        )
    with (
        translate_errors(UsageError, ReportError, comparing.CompareError),
        translate_errors(RetryableError, ReportWriteError),
    ):
        before, after = ([load_run(folder) for folder in side] for side in sides)
        result = comparing.compare(
            before,
            after,
            allow=allowed,
            tolerance=tolerance / 100.0,
            day_effect_percent=settings.bench.day_effect_percent,
            earlier=[*before, *_earlier_runs(settings.results_folder, before[0], folders)],
        )
        path = make_report_folder(folders[-1]) / COMPARE_FILE if out is None else Path(out)
    with file_errors(f"{path}: cannot be written", "choose another path with --out"):
        write_atomic(path, to_json(result))
    print_comparison(result)
    print(display_path(path.absolute()))
    return CommandResult(kind="comparison", data=json.loads(to_json(result)), failure=_find_failure(result))


def _earlier_runs(results_folder: Path, like: Run, without: Sequence[Path]) -> list[Run]:
    """Load the newest other runs that planned a trial of `like`, without unreadable ones."""
    wanted = {planned.trial.digest() for planned in like.record.planned}
    runs: list[Run] = []
    for path in sorted(results_folder.glob(f"*/{RUN_FILE}"), reverse=True):
        if path.parent.is_symlink() or path.parent.resolve() in without or len(runs) == _MAX_EARLIER_RUNS:
            continue
        with contextlib.suppress(ResultError, ReportError):
            if wanted & {planned.trial.digest() for planned in RunRecord.read(path).planned}:
                runs.append(load_run(path.parent))
    return runs


def compare_trainings(folders: Sequence[Path]) -> comparison.TrainingComparison:
    """Print two trainings side by side, with the verdict on the second's held-out loss."""
    if len(folders) != 2 or not all(map(is_training, folders)):
        raise UsageError(
            "compare: a training can only be compared with one other training", remedy="pass two trainings"
        )
    with translate_errors(UsageError, ReportError):
        compared = comparison.compare(folders[0], folders[1])
    rows = ruled_table("", *(folder.name for folder in folders))
    for cells in compared.lines:
        rows.add_row(*cells)
    console(soft_wrap=False).print(rows)
    interval = "" if compared.low is None else f" ({compared.low:+.4f} to {compared.high:+.4f})"
    summary = (
        f"{compared.change:+.4f} nats a token{interval} over {formatting.count(compared.examples, 'held-out example')}"
    )
    print(f"the held-out loss of {folders[1].name} is {compared.verdict}: {summary}")
    return compared


def print_comparison(result: Comparison) -> None:
    """Print the differing conditions, the table, and configurations of only one run."""
    out = console(soft_wrap=False)
    for difference in result.differences:
        out.print(Text(f"! {difference.description}{'' if difference in result.refused else ' (allowed)'}"))
    for run_id, count in result.rejected.items():
        out.print(
            Text(
                f"! {run_id}: {formatting.count(count, 'file')} rejected; `inv report --run={run_id}` shows the reasons"
            )
        )
    for run_id, labels in result.only_in.items():
        if labels:
            out.print(Text(f"! only in {run_id}: {', '.join(labels)}"))
    if result.rows:
        out.print(comparison_table(result))
        for line in undecided_reasons(result.undecided):
            out.print(Text(line))


def undecided_reasons(undecided: Iterable[ComparedRow]) -> list[str]:
    """Summarise the reasons for missing verdicts: one line per reason, with the largest percentage."""
    rows_by_reason: dict[str, list[ComparedRow]] = {}
    for row in undecided:
        rows_by_reason.setdefault(re.sub(r"[0-9.e+-]+", "", row.why), []).append(row)
    lines = []
    for rows in rows_by_reason.values():
        names = list(dict.fromkeys(row.configuration for row in rows))
        worst = max(rows, key=lambda row: row.shows_percent or 0.0)
        lines.append(f"{worst.verdict}: {formatting.first_n(names, 4)}: {worst.why}")
    return lines


def comparison_table(result: Comparison) -> Table:
    """Build a table with one row per metric and configuration."""
    numbers = ("before", "after", "times as fast")
    table = ruled_table("configuration", "metric", *numbers, "verdict", right=numbers)
    for column in table.columns[2:]:
        column.no_wrap = True
    for row in result.rows:
        sides = [formatting.number(None if side is None else side.value) for side in (row.before, row.after)]
        table.add_row(Text(row.configuration), Text(_metric_label(row)), *sides, _format_ratio(row), row.verdict)
    return table


def _metric_label(row: ComparedRow) -> str:
    context = ", ".join(f"{name} {value}" for name, value in row.context.items())
    title, unit, _ = measurements.title_unit_scale(row.metric)
    label = _METRIC_LABELS.get(row.metric) or (f"{title}, {unit}" if unit else title)
    return f"{label} ({context})" if context else label


def _format_ratio(row: ComparedRow) -> str:
    if row.speed_ratio is None:
        return "-"
    decimals = formatting.ratio_decimals(row.low, row.high, 3)
    interval = formatting.span(row.low, row.high, decimals, separator="-")
    return f"{formatting.number(row.speed_ratio, decimals)} {interval}".rstrip()


def _find_failure(result: Comparison) -> TaskFailed | None:
    """Return the task error of the comparison's exit code, with the reason; None for 0."""
    runs = f"{', '.join(result.before)} and {', '.join(result.after)}"
    if result.refused:
        names = formatting.join_with_and([difference.name for difference in result.refused])
        differ = "differs" if len(result.refused) == 1 else "differ"
        return UsageError(f"{runs} cannot be compared: {names} {differ}", remedy=f"{result.remedy}")
    if not result.rows:
        return UsageError(f"{runs} cannot be compared: no common configuration")
    if result.slower:
        worst = min(result.slower, key=lambda row: row.speed_ratio or 1.0)
        return TaskFailed(
            f"{len(result.slower)} of {len(result.rows)} comparisons are slower by more than "
            f"{100 * result.tolerance:g} %, most {worst.configuration}: {worst.metric} at "
            f"{worst.speed_ratio:.3f} of the speed"
        )
    if result.exit_code != 0:
        return Undecided(
            f"{len(result.undecided)} of {len(result.rows)} comparisons are undecided",
            remedy="measure on more workers, compare several runs of each side (`inv compare A,B C,D`), or accept them "
            "with --allow=unknown",
        )
    return None
