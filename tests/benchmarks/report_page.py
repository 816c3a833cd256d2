"""Time of `inv report` on the demo's run and on a run of every workload, and the size of their pages.

The runs are written before the clock starts: the quick suite on four workers, as `make demo` leaves it, telemetry
included, and suite `all` on four GPU nodes, with all figures but that of a comparison. Each round is a process of its
own, so that its imports and the processes it starts count, as for a user.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.records.bootstrap import summarize
from tests.benchmarks import Figure, seconds, spread
from tests.support.paths import ROOT
from tests.support.reports import showcase, synthetic

ROUNDS = 5


def main() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        demo, full = results / "demo", results / "full"
        for plan in synthetic.write_run(demo, synthetic.record(run_id="demo")).planned:
            showcase.write_telemetry(demo / "trials" / plan.trial_id / "telemetry.csv", plan.trial)
        showcase.write(full, workers=4, machine=showcase.A10, run_id="full")
        for run, called, goal in ((demo, "the demo's run", "5 s"), (full, "suite all on four nodes", "-")):
            taken = [seconds(partial(_report, results, run.name)) for _ in range(ROUNDS)]
            drawn = len(list((run / "report" / "figures").glob("*.png")))
            size = (run / "report" / "index.html").stat().st_size
            name = f"inv report of {called}, {drawn} figures"
            figures.append(Figure(name=name, value=spread(summarize(taken), "s"), goal=goal))
            figures.append(Figure(name=f"page of {called}", value=f"{size / 1e6:.2f} MB", goal="2 MB"))
    return figures


def _report(results: Path, run: str) -> None:
    subprocess.run(
        (sys.executable, "-m", "invoke", "report", f"--run={run}"),
        cwd=ROOT,
        env={**os.environ, "INVOKE_RESULTS_FOLDER": str(results)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=600,
        check=True,
    )
