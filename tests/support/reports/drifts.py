"""Changes of machines' speeds during a run, to validate the report: what a load, a neighbour or heat may do."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Schedule(NamedTuple):
    """Times of a run's steps: `times` as shares of the run, shape (trials, steps).

    `workers` is each trial's worker, shape (trials, 1), of `count`; each runs `turns` trials.
    """

    times: Floats
    workers: Integers
    count: int
    turns: int


Drift = Callable[[np.random.Generator, Schedule], Floats]  # logarithms of each step's slowdown


def linear(size: float) -> Drift:
    """Become slower or faster by a constant rate."""
    return lambda random, at: np.log1p(size) * random.choice((-1.0, 1.0)) * at.times


def linear_by_worker(size: float) -> Drift:
    """Let every worker drift by its own amount, from -size to size."""
    return lambda random, at: random.uniform(-size, size, at.count)[at.workers] * at.times


def step(size: float, *, shared: bool = True) -> Drift:
    """Become slower or faster at any time."""

    def draw(random: np.random.Generator, at: Schedule) -> Floats:
        when, signs = random.uniform(0.0, 1.0, at.count), random.choice((-1.0, 1.0), at.count)
        own = np.zeros_like(at.workers) if shared else at.workers
        return np.asarray(np.log1p(size) * signs[own] * (at.times > when[own]))

    return draw


def load(size: float, *, shared: bool = True) -> Drift:
    """Slow all workers, or one, for some part of the run."""

    def draw(random: np.random.Generator, at: Schedule) -> Floats:
        start, end = np.sort(random.uniform(0.0, 1.0, 2))
        concerned = shared or at.workers == random.integers(at.count)
        return np.asarray(np.log1p(size) * ((at.times > start) & (at.times < end) & concerned))

    return draw


def periodic(size: float, period: float | None = None) -> Drift:
    """Slow all workers for half of each period, which is some trials long; None: one to six."""

    def draw(random: np.random.Generator, at: Schedule) -> Floats:
        length = (random.uniform(1.0, 6.0) if period is None else period) / at.turns
        return np.asarray(np.log1p(size) * ((at.times / length + random.uniform()) % 1.0 < 0.5))

    return draw


def heat(size: float, *, shared: bool = True) -> Drift:
    """Approach a limit exponentially, within a twentieth to a half of the run."""

    def draw(random: np.random.Generator, at: Schedule) -> Floats:
        limits = np.log1p(size) * (np.ones(at.count) if shared else random.uniform(0.0, 1.0, at.count))
        return np.asarray(limits[at.workers] * (1.0 - np.exp(-at.times / random.uniform(0.05, 0.5))))

    return draw


def walk(size: float) -> Drift:
    """Let every worker walk at random; its end has the standard deviation `size`."""

    def draw(random: np.random.Generator, at: Schedule) -> Floats:
        grid = np.linspace(0.0, 1.0, 65)
        paths = np.cumsum(random.normal(0.0, size / 8.0, (at.count, len(grid))), axis=1)
        rows = zip(at.times, at.workers[:, 0], strict=True)
        return np.stack([np.interp(row, grid, paths[worker]) for row, worker in rows])

    return draw


DRIFTS: Mapping[str, Drift] = {
    "none": linear(0.0),
    "linear 2 %": linear(0.02),
    "linear 5 %": linear(0.05),
    "linear 10 %": linear(0.10),
    "linear, each worker up to 10 %": linear_by_worker(0.10),
    "step of 5 %": step(0.05),
    "step of 5 %, each worker its own": step(0.05, shared=False),
    "periodic neighbour 5 %": periodic(0.05),
    "neighbour 5 %, each second trial": periodic(0.05, 2.0),
    "load 20 %": load(0.20),
    "load 20 % on one worker": load(0.20, shared=False),
    "heat 5 %": heat(0.05),
    "heat up to 10 %, each worker its own": heat(0.10, shared=False),
    "random walk 5 %": walk(0.05),
}
