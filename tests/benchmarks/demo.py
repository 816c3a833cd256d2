"""`make demo` for a newcomer: in a fresh clone, then again."""

import subprocess
import tempfile
from pathlib import Path

from tests.benchmarks import Figure, seconds
from tests.support.paths import ROOT


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(("git", "clone", "--quiet", str(ROOT), str(clone)), check=True, timeout=60)
        first, again = (seconds(lambda: _make_demo(clone)) for _ in range(2))
    return [
        Figure(name="make demo, fresh clone", value=f"{first:.0f} s n=1", goal="180 s"),
        Figure(name="make demo, again", value=f"{again:.1f} s n=1", goal="45 s"),
    ]


def _make_demo(clone: Path) -> None:
    subprocess.run(
        ("make", "demo"), cwd=clone, check=True, timeout=900, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
