"""`inv compare A B`: show what became faster or slower between runs, on the terminal and for CI jobs.

Exit codes: 0 same or faster, 1 slower beyond the tolerance, 2 not comparable (different machines or inputs, no common
configuration), 5 undecided (too much noise, or a single process).
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from invoke.context import Context
from rich import box
from rich.table import Table
from rich.text import Text

from bench.records.atomic_files import write_atomic
from reports import formatting
from reports.comparison import compare as comparing
from reports.comparison.compare import ComparedRow, Comparison, to_json
from reports.comparison.tests import ENERGY_USE
from reports.read import measurements
from reports.read.load import load as load_run
from reports.read.run import ReportError, ReportWriteError, make_report_folder
from reports.statistics.per_process import ENERGY
from reports.training import comparison
from tasks.cli.answer import Answer
from tasks.cli.flags import parse_names
from tasks.cli.terminal import MIN_TABLE_CHARS, FoldingTable, console, print_path, ruled_table, spare_chars
from tasks.errors import RetryableError, TaskFailed, Undecided, UsageError, file_errors, translate_errors
from tasks.fleet.run_store import find_run, is_training
from tasks.settings.load import load

COMPARE_FILE = "compare.json"
_METRIC_LABELS = {
    "samples_per_sec": "samples/s",
    "useful_tokens_per_sec": "useful tokens/s",
    ENERGY: "J per 1,000 useful tokens",
}
_ENERGY_VERDICTS = {"faster": "less", "slower": "more"}
_SHIFT_NOTE = "A whole run can be shifted: runs of the same code differed by about 0.5 %."


def compare_runs(
    context: Context,
    first: str,
    second: str,
    *,
    also: Sequence[str],
    allow: Sequence[str],
    tolerance: float,
    out: str | None,
) -> Answer:
    """Compare all runs with the first. `tolerance` is in percent."""
    settings = load(context)
    allowed = parse_names("--allow", allow, comparing.ALLOWABLE)
    folders = [find_run(settings.results_folder, name) for name in (first, second, *also)]
    if any(map(is_training, folders)):
        compared = compare_trainings(folders)
        higher = TaskFailed(f"the held-out loss of {folders[1].name} is higher")
        data = {**asdict(compared), "verdict": compared.verdict}
        return Answer(kind="comparison.trainings", data=data, failure=higher if compared.verdict == "higher" else None)
    result = _compare_benchmarks(folders, allow=allowed, tolerance=tolerance / 100.0, out=out)
    return Answer(kind="comparison", data=json.loads(to_json(result)), failure=_find_failure(result))


def _compare_benchmarks(
    folders: Sequence[Path], *, allow: Sequence[str], tolerance: float, out: str | None
) -> Comparison:
    """Compare benchmark runs, write compare.json and print the result."""
    with (
        translate_errors(UsageError, ReportError, comparing.CompareError),
        translate_errors(RetryableError, ReportWriteError),
    ):
        result = comparing.compare([load_run(folder) for folder in folders], allow=allow, tolerance=tolerance)
        path = make_report_folder(folders[-1]) / COMPARE_FILE if out is None else Path(out)
    with file_errors(f"{path}: cannot be written", "choose another path with --out"):
        write_atomic(path, to_json(result))
    print_comparison(result)
    print_path(path.absolute())
    return result


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
    for row in result.over_all:
        out.print(Text(_format_over_all(row, several=len(result.run_ids) > 2)))
    if any(row.verdict in ("faster", "slower") and _all_moved_same_way(row, result) for row in result.over_all):
        first = result.run_ids[0]
        out.print(Text(f"{_SHIFT_NOTE} To check, repeat {first} unchanged and compare it with its repetition."))
    if result.power_note is not None:
        out.print(Text(result.power_note))
    if result.rows:
        out.print(comparison_table(result, out.width))
        n_hidden = len(result.rows) - len(_visible_rows(result))
        if n_hidden:
            out.print(Text(f"{n_hidden} more measurements were not shown to differ; compare.json has them"))
        for line in unknown_reasons(result.unknown):
            out.print(Text(line))


def _format_over_all(row: ComparedRow, *, several: bool) -> str:
    """Format a row as `On average over all 12 configurations: 2.0 % slower (1.8 to 2.2 %)`."""
    prefix = f"On average over {row.configuration}{f' in {row.run_id}' if several else ''}: "
    if row.speed_ratio is None or row.low is None or row.high is None:
        return f"{prefix}unknown: {row.why}"
    if row.verdict in ("faster", "slower"):
        bounds = sorted(abs(100.0 * (bound - 1.0)) for bound in (row.low, row.high))
        change = abs(100.0 * (row.speed_ratio - 1.0))
        decimals = formatting.ratio_decimals(row.low, row.high, 3) - 2
        return (
            f"{prefix}{change:.{decimals}f} % {row.verdict} ({bounds[0]:.{decimals}f} to {bounds[1]:.{decimals}f} %)."
        )
    verdict = "the same" if row.verdict == "same" else f"not shown to differ: {row.why}"
    return f"{prefix}{_format_ratio(row)} times as fast, {verdict}."


def _all_moved_same_way(over_all: ComparedRow, result: Comparison) -> bool:
    """Return whether every configuration of that run became faster, or every one slower."""
    ratios = [row.speed_ratio for row in result.rows if (row.run_id, row.metric) == (over_all.run_id, over_all.metric)]
    return len({ratio > 1.0 for ratio in ratios if ratio is not None}) == 1


def unknown_reasons(unknown: Iterable[ComparedRow]) -> list[str]:
    """Summarise the reasons for unknown verdicts: one line per reason, with the largest percentage."""
    rows_by_reason: dict[str, list[ComparedRow]] = {}
    for row in unknown:
        rows_by_reason.setdefault(re.sub(r"[0-9.e+]+ %", "%", row.why), []).append(row)
    lines = []
    for rows in rows_by_reason.values():
        names = list(dict.fromkeys(row.configuration for row in rows))
        worst = max(rows, key=lambda row: row.shows_percent or 0.0)
        lines.append(f"unknown: {formatting.first_n(names, 4)}: {worst.why}")
    return lines


def comparison_table(result: Comparison, width: int = MIN_TABLE_CHARS) -> Table:
    """Build a table with one row per metric and configuration of the visible rows, within `width` characters."""
    table = FoldingTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 0))
    table.add_column("configuration", overflow="fold")
    table.add_column("metric", overflow="fold")
    several = len(result.run_ids) > 2
    spare = spare_chars(width, columns=3 if several else 2)
    if several:
        table.add_column("run", overflow="fold")
    for heading in ("before", "after", "times as fast"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in _visible_rows(result):
        cells = [
            formatting.with_breaks(row.configuration, (16 if several else 20) + spare),
            formatting.with_breaks(_metric_label(row), (15 if several else 18) + spare),
        ]
        if several:
            cells.append(formatting.with_breaks(row.run_id, 10 + spare))
        sides = [formatting.number(None if side is None else side.value) for side in (row.before, row.after)]
        verdict = _ENERGY_VERDICTS.get(row.verdict, row.verdict) if row.family == ENERGY_USE else row.verdict
        table.add_row(*map(Text, cells), *sides, _format_ratio(row), verdict)
    return table


def _visible_rows(result: Comparison) -> list[ComparedRow]:
    return [
        row
        for row in result.rows
        if row.verdict in ("faster", "slower") or (row.decides and (row.verdict == "unknown" or not row.context))
    ]


def _metric_label(row: ComparedRow) -> str:
    values = json.loads(row.context) if row.context else {}
    context = ", ".join(f"{name} {value}" for name, value in values.items())
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
    runs = " and ".join(result.run_ids[:2]) if len(result.run_ids) == 2 else ", ".join(result.run_ids)
    if result.refused:
        names = formatting.join_with_and([difference.name for difference in result.refused])
        differ = "differs" if len(result.refused) == 1 else "differ"
        return UsageError(f"{runs} cannot be compared: {names} {differ}", remedy=f"{result.remedy}")
    if not result.rows:
        return UsageError(f"{runs} cannot be compared: no common configuration")
    if result.slower:
        worst = min(result.slower, key=lambda row: row.speed_ratio or 1.0)
        deciding = sum(row.decides for row in (*result.rows, *result.over_all))
        return TaskFailed(
            f"{len(result.slower)} of {deciding} comparisons are slower by more than "
            f"{100 * result.tolerance:g} %, most {worst.configuration} in {worst.run_id}: {worst.metric} at "
            f"{worst.speed_ratio:.3f} of the speed"
        )
    if result.exit_code != 0:
        return Undecided(
            f"{len(result.unknown)} of {sum(row.decides for row in result.rows)} comparisons are undecided",
            remedy="measure on more workers, or accept them with --allow=unknown",
        )
    return None
