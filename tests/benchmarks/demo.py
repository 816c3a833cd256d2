"""`make demo` as a newcomer meets it: in a fresh clone, and once more."""

import subprocess
import tempfile
import time
from pathlib import Path

from tests.benchmarks import Figure

ROOT = Path(__file__).resolve().parents[2]


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(("git", "clone", "--quiet", str(ROOT), str(clone)), check=True, timeout=60)
        first = _seconds(clone)
        again = _seconds(clone)
    return [
        Figure(name="make demo, fresh clone", value=f"{first:.0f} s n=1", goal="180 s"),
        Figure(name="make demo, again", value=f"{again:.1f} s n=1", goal="45 s"),
    ]


def _seconds(clone: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        ("make", "demo"), cwd=clone, check=True, timeout=900, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began
