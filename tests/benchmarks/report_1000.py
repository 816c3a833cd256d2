"""How long a report of 1,000 trials takes: 250 configurations on 4 workers, 15 steps each, figures included.

Prints; asserts nothing. The trials are synthetic and are written before the clock starts.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.unit.reports import synthetic

CONFIGURATIONS = 250


def main() -> None:
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, CONFIGURATIONS + 1))
    with tempfile.TemporaryDirectory() as folder:
        run = synthetic.write_run(Path(folder), synthetic.record(trials))
        before = _peak_rss_mb()
        start = time.perf_counter()
        from reports.build import build  # its imports (pandas, matplotlib) are part of what a user waits for

        imported = time.perf_counter()
        made = build(Path(folder))
        done = time.perf_counter()
        print(
            f"report of {len(run.planned)} trials: {done - start:.2f} s wall "
            f"(imports {imported - start:.2f} s, build {done - imported:.2f} s), "
            f"peak RSS {_peak_rss_mb():.0f} MB (before: {before:.0f} MB), "
            f"page {made.index.stat().st_size / 1e6:.2f} MB"
        )


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


if __name__ == "__main__":
    main()
