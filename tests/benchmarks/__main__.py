"""`python -m tests.benchmarks [NAME ...]`: run every benchmark, or the named ones, one table line each.

Exit code 1 if a benchmark could not run; speed never decides it.
"""

import importlib
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import Figure

HERE = Path(__file__).parent


def main(names: Sequence[str]) -> int:
    known = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"benchmark {unknown[0]!r} is unknown; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; medians [95 % interval]")
    figures: list[Figure] = []
    broken = []
    for name in names or known:
        print(f"... {name}", file=sys.stderr, flush=True)
        try:
            figures.extend(importlib.import_module(f"tests.benchmarks.{name}").main())
        except Exception:  # noqa: BLE001 - whatever it was, the other benchmarks' numbers are still wanted
            traceback.print_exc()
            broken.append(name)
    _print_table([("figure", "value", "ratio", "goal"), *((f.name, f.value, f.ratio, f.goal) for f in figures)])
    for name in broken:
        print(f"{name}: could not be run, see above")
    return 1 if broken else 0


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
