"""The numbers the project promises, measured on this machine. No timing is asserted.

A benchmark is a module of this package with `main(argv) -> list[Figure]`.
"""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.bootstrap import Interval
from tests.support.paths import ROOT


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number, its ratio to the other side, and the promised goal."""

    name: str
    value: str
    ratio: str = "-"
    goal: str = "-"


def spread(interval: Interval, unit: str) -> str:
    """Format a median with its 95 % interval and its number of values, e.g. `0.108 s [0.106, 0.111] n=15`."""
    return f"{interval.median:.3g} {unit} [{interval.low:.3g}, {interval.high:.3g}] n={interval.n}"


def a_trial(name: str, model: str, *, is_cuda: bool = True, data: str = "none", **fields: Any) -> Trial:
    """Make a trial outside any suite."""
    profile = "gpu" if is_cuda else "tiny"
    return Trial(name=name, reason="a benchmark", suite="benchmark", profile=profile, model=model, data=data, **fields)


def demo_inputs(folder: Path) -> tuple[str, str]:
    """Make the demo's small model and its data in this folder: the default inputs."""
    model, data = str(folder / "models" / "demo--tiny"), str(folder / "data.jsonl")
    made = (sys.executable, "-m", "bench", "demo", "--model", model, "--data", data)
    subprocess.run(made, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return model, data


def print_figures(figures: Iterable[Figure]) -> None:
    """Print one line a figure, with tabs between fields: the output of a single benchmark."""
    for figure in figures:
        print("\t".join((figure.name, figure.value, figure.ratio, figure.goal)))
