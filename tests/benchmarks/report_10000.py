"""Time of a report of 10,000 trials with all step times, and its growth with the number of trials.

250 configurations on 4, 12 and 40 workers, 15 measured steps each: 1,000, 3,000 and 10,000 trials, page and figures
included. Then only the growing part (loading, statistics, tables), on 2,500 configurations of 4 workers and on
10,000 of a single one, whose intervals take a bootstrap each. Each round is a Python of its own, so that its imports
and its peak memory count, as for a user. The trials are synthetic and are written before the clock starts.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from bench.records.bootstrap import summarize
from tests.benchmarks import Figure, spread
from tests.support.paths import ROOT
from tests.support.reports import synthetic

ROUNDS = 3
_PEAK = """
usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(usage * (1 if sys.platform == "darwin" else 1024))
"""
_REPORT = f"""
import pathlib, resource, sys
from reports.output.build import build
build(pathlib.Path(sys.argv[1]))
{_PEAK}
"""
_TABLES = f"""
import pathlib, resource, sys
from reports.output import tables
from reports.read.load import load
from reports.summary.summarize import summarize
run = load(pathlib.Path(sys.argv[1]))
summary = summarize(run)
tables.summary_json(summary, run), tables.summary_csv(summary)
tables.to_csv(run.trials), tables.to_csv(run.steps)
{_PEAK}
"""


def main() -> list[Figure]:
    figures: list[Figure] = []
    grown: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for workers in (4, 12, 40):
            trials, run = _write(Path(folder), 250, workers)
            rounds = [_timed(_REPORT, run) for _ in range(ROUNDS)]
            seconds, busy = (summarize([taken[index] for taken in rounds]) for index in (0, 2))
            grown.append((trials, seconds.median))
            name = f"report of {trials:,} trials"
            in_time, in_memory = ("10 s", "420 MB") if workers == 40 else ("-", "-")
            figures += [
                Figure(name=f"{name}, figures included", value=spread(seconds, "s"), goal=in_time),
                Figure(name=f"{name}, processor time", value=spread(busy, "s"), goal=in_time),
                Figure(name=f"{name}, peak memory", value=_peak(rounds), goal=in_memory),
            ]
        page_bytes = (run / "report" / "index.html").stat().st_size
        figures += [
            Figure(name=f"{name}, size of its page", value=f"{page_bytes / 1e6:.2f} MB", goal="2 MB"),
            _growth(grown),
        ]
        for configurations, workers in ((2500, 4), (10_000, 1)):
            trials, run = _write(Path(folder), configurations, workers)
            rounds = [_timed(_TABLES, run) for _ in range(ROUNDS)]
            name = f"loading, statistics, tables of {configurations:,} configurations x {workers}"
            figures += [
                Figure(name=name, value=spread(summarize([wall for wall, *_ in rounds]), "s"), goal="10 s"),
                Figure(name=f"{name}, peak memory", value=_peak(rounds), goal="500 MB"),
            ]
    return figures


def _write(folder: Path, configurations: int, workers: int) -> tuple[int, Path]:
    """Write a run of this many trials with distinct configurations; return their number and the folder."""
    trials = tuple(
        synthetic.trial(
            f"rank-{number % 250 + 1}-{number // 250 + 1}",
            lora_rank=number % 250 + 1,
            micro_batch_size=number // 250 + 1,
        )
        for number in range(configurations)
    )
    run = folder / f"{configurations}x{workers}"
    with mock.patch("os.fsync"):  # syncing each file took most of a minute
        planned = synthetic.write_run(run, synthetic.record(trials, workers=workers)).planned
    return len(planned), run


def _timed(program: str, run: Path) -> tuple[float, int, float]:
    """Measure seconds, peak resident bytes of the process or a child, and CPU seconds of all."""
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(
        (sys.executable, "-c", program, str(run)),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, int(done.stdout), busy


def _peak(rounds: Sequence[tuple[float, int, float]]) -> str:
    return f"{max(peak for _, peak, _ in rounds) / 1e6:.0f} MB"


def _growth(grown: Sequence[tuple[int, float]]) -> Figure:
    """Compute the exponent between the smallest and the largest run: 1 is linear, below 1 better."""
    (few, fast), (many, slow) = grown[0], grown[-1]
    exponent = math.log(slow / fast) / math.log(many / few)
    return Figure(name=f"growth from {few:,} to {many:,} trials, exponent", value=f"{exponent:.2f}", goal="1")
