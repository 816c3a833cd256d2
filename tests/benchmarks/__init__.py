"""The numbers the project promises, measured on this machine. No timing is asserted.

A benchmark is a module of this package with `main() -> list[Figure]`. Both sides of a comparison are measured in the
same run, alternating, so that a busy machine slows both.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.bootstrap import Interval, summarize
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


def seconds(act: Callable[[], object]) -> float:
    """Measure the wall time of a call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def compare_with(pairs: Sequence[tuple[float, float]], name: str, other: str, *, of: str, goal: str) -> list[Figure]:
    """Make two figures: our seconds with their ratio to the other's by pairs, and the other's; `of` is its name."""
    ours, others = (summarize(list(each)) for each in zip(*pairs, strict=True))
    ratio = summarize([mine / theirs for mine, theirs in pairs])
    return [
        Figure(name=name, value=spread(ours, "s"), ratio=f"{spread(ratio, 'x')} of {of}", goal=goal),
        Figure(name=other, value=spread(others, "s")),
    ]


def print_figures(figures: Iterable[Figure]) -> None:
    """Print one line a figure, with tabs between fields: the output of a single benchmark."""
    for figure in figures:
        print("\t".join((figure.name, figure.value, figure.ratio, figure.goal)))
