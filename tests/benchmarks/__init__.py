"""The numbers the project promises, measured on this machine: `make benchmark`. Nothing here asserts a timing.

A benchmark is a module beside this file with `main() -> list[Figure]`; what is compared is measured in the same run,
alternating, so that a busy machine slows both sides.
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
    """One measured number. `ratio` says what it is to what it is compared with; `goal` what was promised."""

    name: str
    value: str
    ratio: str = "-"
    goal: str = "-"


def spread(interval: Interval, unit: str) -> str:
    """A median with its 95 % interval and its number of values, e.g. `0.108 s [0.106, 0.111] n=15`."""
    return f"{interval.median:.3g} {unit} [{interval.low:.3g}, {interval.high:.3g}] n={interval.n}"


def a_trial(name: str, model: str, *, is_cuda: bool = True, data: str = "none", **fields: Any) -> Trial:
    """A trial that is no part of a suite."""
    profile = "gpu" if is_cuda else "tiny"
    return Trial(name=name, reason="a benchmark", suite="benchmark", profile=profile, model=model, data=data, **fields)


def demo_inputs(folder: Path) -> tuple[str, str]:
    """The demo's small model and its data, made in this folder: for whoever names no others."""
    model, data = str(folder / "models" / "demo--tiny"), str(folder / "data.jsonl")
    made = (sys.executable, "-m", "bench", "demo", "--model", model, "--data", data)
    subprocess.run(made, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return model, data


def seconds(act: Callable[[], object]) -> float:
    """How long it takes by the clock on the wall."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def beside(pairs: Sequence[tuple[float, float]], name: str, other: str, *, of: str, goal: str) -> list[Figure]:
    """Seconds of ours with their ratio, pair by pair, to the other's; the other's seconds. `of` is its short name."""
    ours, others = (summarize(list(each)) for each in zip(*pairs, strict=True))
    ratio = summarize([mine / theirs for mine, theirs in pairs])
    return [
        Figure(name=name, value=spread(ours, "s"), ratio=f"{spread(ratio, 'x')} of {of}", goal=goal),
        Figure(name=other, value=spread(others, "s")),
    ]


def say(figures: Iterable[Figure]) -> None:
    """A line for each, its fields apart by tabs: what a benchmark prints that is run by itself."""
    for figure in figures:
        print("\t".join((figure.name, figure.value, figure.ratio, figure.goal)))
