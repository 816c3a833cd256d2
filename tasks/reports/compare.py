"""`inv compare A B`: what became faster or slower between runs, for people and for a CI job.

Exit codes: 0 same or faster, 1 slower beyond the tolerance, 2 not comparable (unlike machines or inputs, nothing in
common, or too noisy to tell).
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from invoke.context import Context
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records.atomic_files import write_atomic
from reports import formatting
from reports.comparison import compare as comparing
from reports.comparison.compare import ComparedRow, Comparison
from reports.comparison.export import to_json
from reports.comparison.tests import USED
from reports.output.csv_frames import load_all
from reports.read import measurements
from reports.read.run import NotWritten, ReportError, report_folder
from reports.statistics.energy import ENERGY
from reports.training import comparison
from tasks.cli.flags import number, one_of_each
from tasks.cli.terminal import FoldingTable, for_programs, ruled
from tasks.errors import RetryableError, TaskFailed, UsageError, file_errors, translate_errors
from tasks.fleet.run_store import find_run, is_training
from tasks.settings.load import load
from tasks.settings.sources import shown

COMPARE_FILE = "compare.json"
_METRICS = {
    "samples_per_sec": "samples/s",
    "useful_tokens_per_sec": "useful tokens/s",
    ENERGY: "J per 1,000 useful tokens",
}
_ENERGY_WORDS = {"faster": "less", "slower": "more"}
_SHIFT = "A run may be shifted as a whole: runs of the same code were seen about 0.5 % apart."


def compare_runs(
    context: Context, names: Sequence[str], *, allow: Sequence[str], tolerance: str, out: str | None, as_json: bool
) -> None:
    """Compare all runs with the first of `names`."""
    settings = load(context)
    allowed = one_of_each("--allow", allow, comparing.ALLOWABLE)
    share = number("--tolerance", tolerance, "percent, from 0 to below 100", lambda given: 0.0 <= given < 100.0) / 100.0
    folders = [find_run(settings.results_folder, name) for name in names]
    if any(map(is_training, folders)):
        if as_json:
            raise UsageError("compare: --json is for benchmarks; without it two trainings are compared in words")
        if show_trainings(folders) == "higher":
            raise TaskFailed(f"the held-out loss of {folders[1].name} is higher")
        return
    with for_programs(as_json) as say:
        compared = _compared(folders, allow=allowed, tolerance=share, out=out)
        say(json.loads(to_json(compared)))
        _conclude(compared)


def _compared(folders: Sequence[Path], *, allow: Sequence[str], tolerance: float, out: str | None) -> Comparison:
    """The comparison, written and shown."""
    with (
        translate_errors(UsageError, ReportError, comparing.CompareError),
        translate_errors(RetryableError, NotWritten),
    ):
        compared = comparing.compare(load_all(folders), allow=allow, tolerance=tolerance)
        path = report_folder(folders[-1]) / COMPARE_FILE if out is None else Path(out)
    with file_errors(f"{path}: cannot be written", "; choose another place with --out"):
        write_atomic(path, to_json(compared))
    show(compared)
    print(shown(path.absolute()))
    return compared


def show_trainings(folders: Sequence[Path]) -> str:
    """Print two trainings beside each other; whether the second's held-out loss is lower, higher, ..."""
    if len(folders) != 2 or not all(map(is_training, folders)):
        raise UsageError("compare: a training is compared with one other training; name the two")
    with translate_errors(UsageError, ReportError):
        found = comparison.compare(folders[0], folders[1])
    rows = ruled("", *(folder.name for folder in folders))
    for cells in found.lines:
        rows.add_row(*cells)
    Console(highlight=False).print(rows)
    between = "" if found.low is None else f" ({found.low:+.4f} to {found.high:+.4f})"
    said = f"{found.change:+.4f} nats a token{between} over {formatting.count(found.examples, 'held-out example')}"
    print(f"the held-out loss of {folders[1].name} is {found.verdict}: {said}")
    return found.verdict


def show(compared: Comparison) -> None:
    """Print what is unlike, the table, and what only one run has."""
    console = Console(highlight=False, soft_wrap=False)
    for one in compared.unlike:
        console.print(Text(f"! {one.words}{'' if one in compared.refused else ' (allowed)'}"))
    for run_id, amount in compared.rejected.items():
        console.print(
            Text(
                f"! {run_id}: {formatting.count(amount, 'file')} rejected; inv report --run={run_id} says which and why"
            )
        )
    for run_id, labels in compared.only_in.items():
        if labels:
            console.print(Text(f"! only in {run_id}: {', '.join(labels)}"))
    for row in compared.over_all:
        console.print(Text(_over_all(row, several=len(compared.run_ids) > 2)))
    if any(row.verdict in ("faster", "slower") and _moved_alike(row, compared) for row in compared.over_all):
        first = compared.run_ids[0]
        console.print(Text(f"{_SHIFT} What would tell: repeat {first} as it was, and compare it with its repeat."))
    if compared.rows:
        console.print(table(compared))
        quiet = len(compared.rows) - len(_shown(compared))
        if quiet:
            console.print(Text(f"{quiet} more measurements were not shown to differ; compare.json has them"))
        for line in reasons(compared.unknown):
            console.print(Text(line))


def _over_all(row: ComparedRow, *, several: bool) -> str:
    """`On average over all 12 configurations: 2.0 % slower (1.8 to 2.2 %)`."""
    said = f"On average over {row.configuration}{f' in {row.run_id}' if several else ''}: "
    if row.speed_ratio is None or row.low is None or row.high is None:
        return f"{said}unknown: {row.why}"
    if row.verdict in ("faster", "slower"):
        ends = sorted(abs(100.0 * (end - 1.0)) for end in (row.low, row.high))
        away = abs(100.0 * (row.speed_ratio - 1.0))
        places = formatting.ratio_places(row.low, row.high, 3) - 2
        return f"{said}{away:.{places}f} % {row.verdict} ({ends[0]:.{places}f} to {ends[1]:.{places}f} %)."
    word = "the same" if row.verdict == "same" else f"not shown to differ: {row.why}"
    return f"{said}{_times(row)} times as fast, {word}."


def _moved_alike(over_all: ComparedRow, compared: Comparison) -> bool:
    """True where every configuration of that run moved to the same side."""
    own = [row.speed_ratio for row in compared.rows if (row.run_id, row.metric) == (over_all.run_id, over_all.metric)]
    return len({ratio > 1.0 for ratio in own if ratio is not None}) == 1


def reasons(unknown: Iterable[ComparedRow]) -> list[str]:
    """A line for each kind of reason, with the configurations it holds for; of several percentages the largest."""
    kinds: dict[str, list[ComparedRow]] = {}
    for row in unknown:
        kinds.setdefault(re.sub(r"[0-9.e+]+ %", "%", row.why), []).append(row)
    lines = []
    for found in kinds.values():
        names = list(dict.fromkeys(row.configuration for row in found))
        worst = max(found, key=lambda row: row.shows_percent or 0.0)
        lines.append(f"unknown: {formatting.first_n(names, 4)}: {worst.why}")
    return lines


def table(compared: Comparison) -> Table:
    """One line per metric and configuration, within 80 characters, without what did not decide and did not differ."""
    shown = FoldingTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 0))
    shown.add_column("configuration", overflow="fold")
    shown.add_column("metric", overflow="fold")
    several = len(compared.run_ids) > 2
    if several:
        shown.add_column("run", overflow="fold")
    for head in ("before", "after", "times as fast"):
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    for row in _shown(compared):
        cells = [
            formatting.with_breaks(row.configuration, 16 if several else 20),
            formatting.with_breaks(_metric(row), 15 if several else 18),
        ]
        if several:
            cells.append(formatting.with_breaks(row.run_id, 10))
        sides = [formatting.number(None if side is None else side.value) for side in (row.before, row.after)]
        word = _ENERGY_WORDS.get(row.verdict, row.verdict) if row.family == USED else row.verdict
        shown.add_row(*map(Text, cells), *sides, _times(row), word)
    return shown


def _shown(compared: Comparison) -> list[ComparedRow]:
    return [
        row
        for row in compared.rows
        if row.verdict in ("faster", "slower") or (row.decides and (row.verdict == "unknown" or not row.context))
    ]


def _metric(row: ComparedRow) -> str:
    held = json.loads(row.context) if row.context else {}
    context = ", ".join(f"{name} {value}" for name, value in held.items())
    words, unit, _ = measurements.words_unit_scale(row.metric)
    named = _METRICS.get(row.metric) or (f"{words}, {unit}" if unit else words)
    return f"{named} ({context})" if context else named


def _times(row: ComparedRow) -> str:
    if row.speed_ratio is None:
        return "-"
    places = formatting.ratio_places(row.low, row.high, 3)
    return f"{formatting.number(row.speed_ratio, places)} {formatting.span(row.low, row.high, places, to='-')}".rstrip()


def _conclude(compared: Comparison) -> None:
    """Raise the task error of the comparison's exit code, with the reason."""
    runs = " and ".join(compared.run_ids[:2]) if len(compared.run_ids) == 2 else ", ".join(compared.run_ids)
    if compared.refused:
        names = formatting.listing([one.name for one in compared.refused])
        differ = "differs" if len(compared.refused) == 1 else "differ"
        raise UsageError(f"{runs} cannot be compared: {names} {differ}; {compared.remedy}")
    if not compared.rows:
        raise UsageError(f"{runs} cannot be compared: they have no configuration in common")
    if compared.slower:
        worst = min(compared.slower, key=lambda row: row.speed_ratio or 1.0)
        deciding = sum(row.decides for row in (*compared.rows, *compared.over_all))
        raise TaskFailed(
            f"{len(compared.slower)} of {deciding} comparisons are slower by more than "
            f"{100 * compared.tolerance:g} %, most {worst.configuration} in {worst.run_id}: {worst.metric} at "
            f"{worst.speed_ratio:.3f} of the speed"
        )
    if compared.exit_code != 0:
        raise UsageError(
            f"{len(compared.unknown)} of {sum(row.decides for row in compared.rows)} comparisons are undecided; "
            "measure on more workers, or accept it: --allow=unknown"
        )
