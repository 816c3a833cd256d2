"""Time of `inv --list` against its lower bound: Python that imports Invoke and stops."""

import subprocess
import sys
from pathlib import Path

from tests.benchmarks import Figure, compare_with, print_figures, seconds
from tests.support.paths import ROOT

ROUNDS = 25


def main() -> list[Figure]:
    inv = (str(Path(sys.executable).with_name("inv")), "--list")
    least = (sys.executable, "-c", "import invoke")
    for command in (inv, least):
        _run(command)  # fills the caches for both
    pairs = [(seconds(lambda: _run(inv)), seconds(lambda: _run(least))) for _ in range(ROUNDS)]
    name = "python -c 'import invoke'"
    return compare_with(pairs, "inv --list", name, of=name, goal="1.5 x")


def _run(command: tuple[str, ...]) -> None:
    # Without a timeout: with one, Python looks every 50 ms whether the process has ended.
    subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    print_figures(main())
