"""How long `inv --list` takes beside the least it could take: Python that imports Invoke and stops."""

import subprocess
import sys
import time
from pathlib import Path

from bench.records.interval import summarize
from tests.benchmarks import Figure, spread

ROUNDS = 25
ROOT = Path(__file__).resolve().parents[2]


def main() -> list[Figure]:
    inv = (str(Path(sys.executable).with_name("inv")), "--list")
    least = (sys.executable, "-c", "import invoke")
    for command in (inv, least):
        _seconds(command)  # fills the caches both then run from
    pairs = [(_seconds(inv), _seconds(least)) for _ in range(ROUNDS)]
    ratio = summarize([listed / imported for listed, imported in pairs])
    return [
        Figure(
            name="inv --list",
            value=spread(summarize([listed for listed, _ in pairs]), "s"),
            ratio=f"{spread(ratio, 'x')} of python -c 'import invoke'",
            goal="1.5 x",
        ),
        Figure(name="python -c 'import invoke'", value=spread(summarize([imported for _, imported in pairs]), "s")),
    ]


def _seconds(command: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60, check=True)
    return time.perf_counter() - began
