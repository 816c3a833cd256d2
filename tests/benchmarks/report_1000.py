"""How long a report of 1,000 trials takes: 250 configurations on 4 workers, 15 steps each, figures included.

Each round is a Python of its own, so that its imports (pandas, matplotlib) and its peak memory count, as for a user.
The trials are synthetic and are written before the clock starts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.result import summarize
from tests.benchmarks import Figure, spread
from tests.unit.reports import synthetic

CONFIGURATIONS = 250
ROUNDS = 5
ROOT = Path(__file__).resolve().parents[2]
_BUILD = "import pathlib, sys; from reports.build import build; print(build(pathlib.Path(sys.argv[1])).index)"


def main() -> list[Figure]:
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, CONFIGURATIONS + 1))
    with tempfile.TemporaryDirectory() as folder:
        run = synthetic.write_run(Path(folder), synthetic.record(trials))
        rounds = [_report(folder) for _ in range(ROUNDS)]
        page_bytes = (Path(folder) / "report" / "index.html").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak_bytes = peak if sys.platform == "darwin" else peak * 1024
    name = f"report of {len(run.planned):,} trials"
    return [
        Figure(name=f"{name}, figures included", value=spread(summarize(rounds), "s"), goal="5 s"),
        Figure(name=f"{name}, peak memory of any process so far", value=f"{peak_bytes / 1e6:.0f} MB"),
        Figure(name=f"{name}, size of its page", value=f"{page_bytes / 1e6:.2f} MB"),
    ]


def _report(folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        (sys.executable, "-c", _BUILD, folder),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    return time.perf_counter() - began
