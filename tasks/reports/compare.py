"""`inv compare A B`: what became faster or slower between runs, for people and for a CI job.

Exit codes: 0 same or faster, 1 slower beyond the tolerance, 2 not comparable (unlike machines or inputs, nothing in
common, or too noisy to tell).
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from invoke.context import Context
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records.durable import write_atomic
from bench.records.layout import REPORT_FOLDER
from reports import text
from reports.comparison import compare as comparing
from reports.comparison.compare import ComparedRow, Comparison
from reports.comparison.written import to_json
from reports.output.csv_frames import load_all
from reports.read.run import ReportError
from tasks.cli.flags import number
from tasks.errors import TaskFailed, UsageError
from tasks.fleet.folders import find_run
from tasks.settings.load import load

COMPARE_FILE = "compare.json"


def compare_runs(
    context: Context, names: Sequence[str], *, allow: Sequence[str], tolerance: str, out: str | None
) -> None:
    """Compare all runs with the first of `names`."""
    settings = load(context)
    allowed = _allowed(allow, comparing.ALLOWABLE)
    share = number("--tolerance", tolerance, "percent, from 0 to below 100", lambda given: 0.0 <= given < 100.0) / 100.0
    folders = [find_run(settings.results_folder, name) for name in names]
    try:
        compared = comparing.compare(load_all(folders), allow=allowed, tolerance=share)
    except (ReportError, comparing.CompareError) as error:
        raise UsageError(str(error)) from None
    path = folders[-1] / REPORT_FOLDER / COMPARE_FILE if out is None else Path(out)
    try:
        if out is None:
            path.parent.mkdir(exist_ok=True)
        write_atomic(path, to_json(compared))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; choose another place with --out") from None
    show(compared)
    print(path.relative_to(settings.root) if path.is_relative_to(settings.root) else path)
    _conclude(compared)


def show(compared: Comparison) -> None:
    """Print what is unlike, the table, and what only one run has."""
    console = Console(highlight=False, soft_wrap=False)
    for one in compared.unlike:
        console.print(Text(f"! {one.words}{'' if one in compared.refused else ' (allowed)'}"))
    for run_id, amount in compared.rejected.items():
        console.print(
            Text(f"! {run_id}: {text.count(amount, 'file')} rejected; inv report --run={run_id} says which and why")
        )
    for run_id, labels in compared.only_in.items():
        if labels:
            console.print(Text(f"! only in {run_id}: {', '.join(labels)}"))
    if compared.rows:
        console.print(table(compared))
        quiet = len(compared.rows) - len(_shown(compared))
        if quiet:
            console.print(Text(f"{quiet} more measurements are the same"))
        reasons = dict.fromkeys(row.why for row in compared.unknown)
        for why in reasons:
            console.print(Text(f"unknown: {why}"))


def table(compared: Comparison) -> Table:
    """One line per metric and configuration, without the measurements that came out the same."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("configuration", overflow="fold", max_width=22)
    shown.add_column("metric", overflow="fold", max_width=24)
    several = len(compared.run_ids) > 2
    if several:
        shown.add_column("run", overflow="fold", max_width=16)
    for head in ("before", "after", "times as fast"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("verdict")
    for row in _shown(compared):
        cells = [Text(row.configuration), Text(_metric(row))]
        if several:
            cells.append(Text(row.run_id))
        sides = [text.number(None if side is None else side.value) for side in (row.before, row.after)]
        shown.add_row(*cells, *sides, _times(row), row.verdict)
    return shown


def _shown(compared: Comparison) -> list[ComparedRow]:
    return [row for row in compared.rows if row.verdict != "same" or not row.context]


def _metric(row: ComparedRow) -> str:
    held = json.loads(row.context) if row.context else {}
    context = ", ".join(f"{name} {value}" for name, value in held.items())
    return f"{row.metric} ({context})" if context else row.metric


def _times(row: ComparedRow) -> str:
    if row.speed_ratio is None:
        return "-"
    value = text.number(row.speed_ratio, 3)
    return value if row.low is None else f"{value} ({text.number(row.low, 3)}-{text.number(row.high, 3)})"


def _allowed(given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for one in given for name in one.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise UsageError(f"--allow {name}: expected one of {', '.join(known)}")
    return names


def _conclude(compared: Comparison) -> None:
    """Raise the task error of the comparison's exit code, with the reason."""
    runs = " and ".join(compared.run_ids[:2]) if len(compared.run_ids) == 2 else ", ".join(compared.run_ids)
    if compared.refused:
        names = text.listing([one.name for one in compared.refused])
        differ = "differs" if len(compared.refused) == 1 else "differ"
        raise UsageError(f"{runs} cannot be compared: {names} {differ}; {compared.remedy}")
    if not compared.rows:
        raise UsageError(f"{runs} cannot be compared: they have no configuration in common")
    if compared.slower:
        worst = min(compared.slower, key=lambda row: row.speed_ratio or 1.0)
        raise TaskFailed(
            f"{len(compared.slower)} of {len(compared.rows)} comparisons are slower by more than "
            f"{100 * compared.tolerance:g} %, most {worst.configuration} in {worst.run_id}: {worst.metric} at "
            f"{worst.speed_ratio:.3f} of the speed"
        )
    if compared.exit_code != 0:
        raise UsageError(
            f"{len(compared.unknown)} of {len(compared.rows)} comparisons are undecided; measure on more workers, "
            "or accept it: --allow=unknown"
        )
