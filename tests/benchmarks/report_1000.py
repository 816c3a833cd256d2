"""How long a report of 1,000 trials takes: 250 configurations on 4 workers, 15 steps each, figures included.

Each round is a Python of its own, so that its imports (pandas, matplotlib) and its peak memory count, as for a user.
The trials are synthetic and are written before the clock starts.
"""

from __future__ import annotations

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
_BUILD = """
import pathlib, resource, sys
from reports.build import build
build(pathlib.Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def main() -> list[Figure]:
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, CONFIGURATIONS + 1))
    with tempfile.TemporaryDirectory() as folder:
        run = synthetic.write_run(Path(folder), synthetic.record(trials))
        rounds = [_report(folder) for _ in range(ROUNDS)]
        page_bytes = (Path(folder) / "report" / "index.html").stat().st_size
    seconds = summarize([wall for wall, _ in rounds])
    name = f"report of {len(run.planned):,} trials"
    return [
        Figure(
            name=f"{name}, figures included",
            value=spread(seconds, "s"),
            goal="5 s",
        ),
        Figure(name=f"{name}, peak memory", value=f"{max(peak for _, peak in rounds) / 1e6:.0f} MB"),
        Figure(name=f"{name}, size of its page", value=f"{page_bytes / 1e6:.2f} MB"),
    ]


def _report(folder: str) -> tuple[float, int]:
    """Seconds, and the peak resident bytes of the process."""
    began = time.perf_counter()
    done = subprocess.run(
        (sys.executable, "-c", _BUILD, folder),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    return time.perf_counter() - began, int(done.stdout)
