"""Noise between processes of one run, pooled over all its configurations, and its drift. Pure numpy.

A configuration on four workers measures its own noise with three degrees of freedom; twelve configurations on the same
workers measure their common noise with 33. The noise is the residual of the logarithms after subtracting each
configuration's and each worker's mean.

One configuration may be noisier than the others, so an interval is also at least the cautious one, at CAUTIOUS_LEVEL
whatever the number of comparisons. Its variance has a scaled inverse chi-squared prior around PRIOR_VARIANCE times the
pooled one (Smyth 2004), with more than 1 because the noisy configuration is the one that matters, and PRIOR_DF degrees
of freedom. What these constants give and cost, and the best that any method could do:
tests/benchmarks/statistics_power.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.records import student

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PRIOR_VARIANCE = 4.0  # in pooled variances
MIN_SLOPE_DF = 3
MIN_OWN_TIME = 0.25  # share of the variation of times that configurations and workers must not explain
PRIOR_DF = 3.0
CAUTIOUS_LEVEL = 0.04
_MAX_ROUNDS = 50  # limit for subtracting column and row means alternately, needed if cells are missing
_CONVERGED = 1e-12


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviation of a unit's logarithm (a worker's mean, or a process on the only worker), and its degrees
    of freedom, pooled over the configurations; the configuration's own variance and its degrees of freedom.

    `has_prior`: it may be noisier than others, which show what is usual.
    """

    sd: float
    df: float
    own_variance: float = 0.0
    own_df: float = 0.0
    has_prior: bool = False


@dataclass(frozen=True, kw_only=True)
class Slope:
    """The drift of step times that the workers share: a line over each worker's own clock.

    `change` is the logarithm of the slowdown over the longest time between two processes of one worker; `low` and
    `high` are its 95 % interval. `trends` are its values for the processes, around each worker's mean.
    """

    change: float
    low: float
    high: float
    trends: tuple[float, ...]


def fit_slope(processes: Sequence[tuple[str, str, float, float]]) -> Slope | None:
    """Fit log(step time) = configuration + worker + slope x time by least squares; these four of each process.

    It is enough to regress what remains of both without the means (Frisch and Waugh 1933). Times of different workers
    are not compared. None with fewer than MIN_SLOPE_DF degrees of freedom, or if the order of the configurations hardly
    differs between workers and repeats.
    """
    rows, workers, times, logs = zip(*processes, strict=True) if processes else ((), (), (), ())
    row, column = _codes(rows), _codes(workers)
    df = len(logs) - len(set(rows)) - len(set(workers))
    if df < MIN_SLOPE_DF:
        return None
    since = np.array(times) - (np.bincount(column, times) / np.bincount(column))[column]
    duration = max(float(np.ptp(since[column == own])) for own in range(len(set(workers))))
    own_times, own_logs = _residuals(since / (duration or 1.0), row, column), _residuals(np.array(logs), row, column)
    squares = float(own_times @ own_times)
    if squares * duration**2 <= MIN_OWN_TIME * float(since @ since):
        return None
    change = float(own_times @ own_logs) / squares
    left = own_logs - change * own_times
    half = math.sqrt(float(left @ left) / df / squares) * student.quantile(0.95, float(df))
    trends = tuple((change * since / duration).tolist())
    return Slope(change=change, low=change - half, high=change + half, trends=trends)


def spreads(cells: Mapping[str, Mapping[str, float]], *, by_worker: bool, fitted: int = 0) -> dict[str, Spread]:
    """Map each configuration to its spread, from logarithms by configuration and unit; {} if nothing was repeated.

    With `by_worker`, units are workers, shared by the configurations, and a worker's own speed is not counted as noise.
    `fitted` degrees of freedom were used to make the cells.
    """
    rows = {label: units for label, units in cells.items() if len(units) > 1}
    row = _codes([label for label, units in rows.items() for _ in units])
    column = _codes([unit if by_worker else "" for units in rows.values() for unit in units])
    residuals = _residuals(np.array([log for units in rows.values() for log in units.values()]), row, column)
    squares, sizes = np.bincount(row, residuals**2), np.bincount(row)
    df = len(row) - len(rows) - len(set(column.tolist())) + 1 - fitted
    if not rows or df < 1:
        return {}
    sd = math.sqrt(float(squares.sum()) / df)
    # Two configurations on the same workers, or a single one, have no noise but their own.
    has_prior = len(rows) > (2 if by_worker else 1)
    # A row contributes more than its own residuals, because the column means were shifted towards it.
    scale = len(rows) / (len(rows) - 1.0) if by_worker and len(rows) > 1 else 1.0
    known = {
        label: Spread(
            sd=sd,
            df=float(df),
            own_variance=float(squares[index]) * scale / (sizes[index] - 1.0),
            own_df=sizes[index] - 1.0,
            has_prior=has_prior,
        )
        for index, label in enumerate(rows)
    }
    return {label: known.get(label, Spread(sd=sd, df=float(df), has_prior=has_prior)) for label in cells}


def cautious_error(parts: Sequence[tuple[Spread, int]]) -> tuple[float, float]:
    """Return the standard error of a difference of means if each part may be noisier, and its degrees of freedom.

    A part is the spread of the units and their number. The degrees of freedom are those of prior and own variances
    together, at most Satterthwaite's for a prior that is known no better than the pooled noise.
    """
    own_df = min(spread.own_df for spread, _ in parts)
    prior = PRIOR_DF * PRIOR_VARIANCE * sum(spread.sd**2 / n for spread, n in parts)
    own = own_df * sum(spread.own_variance / n for spread, n in parts)
    df, uncertainty = PRIOR_DF + own_df, prior**2 / parts[0][0].df + (own**2 / own_df if own_df else 0.0)
    return ((prior + own) / df) ** 0.5, min(df, (prior + own) ** 2 / uncertainty) if uncertainty > 0 else df


def _codes(names: Sequence[str]) -> Integers:
    """Number the distinct names in the order of their first occurrence."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _residuals(values: Floats, row: Integers, column: Integers) -> Floats:
    """Return what remains of the values without the means of rows and columns; cells may be missing or repeated."""
    groups = [(each, np.bincount(each)) for each in (row, column)]
    for _ in range(_MAX_ROUNDS if values.size else 0):
        shift = 0.0
        for group, sizes in groups:
            means = np.bincount(group, values) / sizes
            values = values - means[group]
            shift = max(shift, float(np.abs(means).max()))
        if shift < _CONVERGED:
            break
    return values
