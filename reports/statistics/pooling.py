"""Noise between processes of one run, pooled over all its configurations. Pure numpy.

A configuration on four workers measures its own noise with three degrees of freedom; twelve configurations on the same
workers measure their common noise with 33. The noise is the residual of the logarithms after subtracting each
configuration's and each worker's mean. A configuration with significantly more noise (F test, 1 % over all of them)
keeps its own noise, and the others are pooled without it.

The test rarely finds a configuration that is three times noisier: with two workers it has one degree of freedom. So an
interval is also at least the cautious one, at CAUTIOUS_LEVEL whatever the number of comparisons. Its variance has a
scaled inverse chi-squared prior around PRIOR_VARIANCE times the pooled one (Smyth 2004), with more than 1 because the
noisy configuration is the one that matters. The prior of a ratio has RATIO_PRIOR_DF degrees of freedom. A change
between two runs has CHANGE_PRIOR_DF, fewer because both runs show the configuration's noise. These constants keep false
verdicts below 5 % if one of twelve configurations is three times noisier, also if it is the baseline. What that costs,
and the best that any method could do: tests/benchmarks/statistics_power.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.records import student

Floats = NDArray[np.float64]
NOISIER_LEVEL = 0.01  # significance level over all configurations
PRIOR_VARIANCE = 4.0  # in pooled variances
RATIO_PRIOR_DF, CHANGE_PRIOR_DF = 3.0, 2.0
CAUTIOUS_LEVEL = 0.04
_MAX_ROUNDS = 50  # limit for subtracting column and row means alternately, needed if cells are missing
_CONVERGED = 1e-12


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviation of a unit's logarithm (a worker's mean, or a process on the only worker), and its degrees
    of freedom, pooled over the configurations; the configuration's own variance and its degrees of freedom.

    `is_own`: `sd` is the configuration's own, because it is noisier than the others or nothing else could be pooled.
    """

    sd: float
    df: float
    own_variance: float = 0.0
    own_df: float = 0.0
    is_own: bool = False


def spreads(cells: Mapping[str, Mapping[str, float]], *, by_worker: bool) -> dict[str, Spread]:
    """Map each configuration to its spread, from logarithms by configuration and unit; {} if nothing was repeated.

    With `by_worker`, units are workers, shared by the configurations, and a worker's own speed is not counted as noise.
    """
    rows = {label: units for label, units in cells.items() if len(units) > 1}
    columns = {
        unit: index for index, unit in enumerate(dict.fromkeys(unit for units in rows.values() for unit in units))
    }
    if not rows:
        return {}
    table = np.full((len(rows), len(columns)), np.nan)
    for row, logs in enumerate(rows.values()):
        table[row, [columns[unit] for unit in logs]] = list(logs.values())
    known = ~np.isnan(table)
    squares, sizes = _residual_squares(table, by_worker=by_worker), known.sum(axis=1)
    labels, noisier = list(rows), _find_noisier(squares, sizes, len(columns) if by_worker else 1, by_worker=by_worker)
    pooled = [index for index in range(len(labels)) if index not in noisier]
    if noisier:
        squares[pooled] = _residual_squares(table[pooled], by_worker=by_worker)
    shared = _pooled_spread(float(squares[pooled].sum()), sizes[pooled], len(columns) if by_worker else 1)
    if shared is None:
        return {}
    # Two configurations on the same workers, or a single one, have no noise but their own.
    if len(pooled) < (3 if by_worker else 2):
        shared = replace(shared, is_own=True)
    own_dfs = sizes - 1.0
    scale = len(pooled) / (len(pooled) - 1.0) if by_worker and len(pooled) > 1 else 1.0
    by_label = {
        labels[index]: replace(
            shared, own_variance=float(squares[index]) * scale / own_dfs[index], own_df=float(own_dfs[index])
        )
        for index in pooled
    } | {labels[index]: spread for index, spread in noisier.items()}
    return {label: by_label.get(label, shared) for label in cells}


def cautious_error(parts: Sequence[tuple[Spread, int]], prior_df: float) -> tuple[float, float]:
    """Return the standard error of a difference of means if each part may be noisier, and its degrees of freedom.

    A part is the spread of the units and their number. The degrees of freedom are those of prior and own variances
    together, at most Satterthwaite's for a prior that is known no better than the pooled noise.
    """
    own_df = min(spread.own_df for spread, _ in parts)
    prior = prior_df * PRIOR_VARIANCE * sum(spread.sd**2 / n for spread, n in parts)
    own = own_df * sum(spread.own_variance / n for spread, n in parts)
    df, uncertainty = prior_df + own_df, prior**2 / parts[0][0].df + (own**2 / own_df if own_df else 0.0)
    return ((prior + own) / df) ** 0.5, min(df, (prior + own) ** 2 / uncertainty) if uncertainty > 0 else df


def difference_spreads(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]
) -> dict[str, Spread]:
    """Map each configuration with several workers to the spread of a worker's difference between two runs.

    Both maps hold logarithms by configuration and worker. A worker may have changed between the runs, equally for all
    configurations. So the variance is that of workers plus the residual one, and the degrees of freedom are
    Satterthwaite's for their sum. The own variance is the sum of the residual ones in both runs.
    """
    cells = {
        label: {worker: log - before[label][worker] for worker, log in by_worker.items() if worker in before[label]}
        for label, by_worker in after.items()
        if label in before
    }
    workers = sorted({worker for by_worker in cells.values() for worker in by_worker})
    complete = [label for label, by_worker in cells.items() if len(by_worker) == len(workers) > 1]
    own = {label: _own_spread(list(by_worker.values())) for label, by_worker in cells.items() if len(by_worker) > 1}
    if len(complete) < 2:
        return own
    sides = [np.array([[side[label][worker] for worker in workers] for label in complete]) for side in (before, after)]
    table = sides[1] - sides[0]
    sizes = np.full(len(complete), len(workers))
    noisier = _find_noisier(_residual_squares(table, by_worker=True), sizes, len(workers), by_worker=True)
    pooled = [index for index in range(len(complete)) if index not in noisier]
    n_pooled, worker_df = len(pooled), len(workers) - 1.0
    workers_variance = n_pooled * float(table[pooled].mean(axis=0).var(ddof=1))
    residual_variance = float(_residual_squares(table[pooled], by_worker=True).sum()) / ((n_pooled - 1.0) * worker_df)
    parts = (workers_variance / n_pooled, residual_variance * (n_pooled - 1.0) / n_pooled)
    denominator = parts[0] ** 2 / worker_df + parts[1] ** 2 / ((n_pooled - 1.0) * worker_df)
    df = sum(parts) ** 2 / denominator if denominator > 0 else n_pooled * worker_df
    squares = [_residual_squares(side[pooled], by_worker=True) for side in sides]
    variances = (squares[0] + squares[1]) * n_pooled / (n_pooled - 1.0) / worker_df
    return own | {
        complete[index]: Spread(sd=sum(parts) ** 0.5, df=df, own_variance=float(variance), own_df=2.0 * worker_df)
        for index, variance in zip(pooled, variances, strict=True)
    }


def _own_spread(values: Sequence[float]) -> Spread:
    return Spread(sd=float(np.std(values, ddof=1)), df=len(values) - 1.0, is_own=True)


def slower_workers(cells: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Map each worker to its time relative to the median worker, as a logarithm.

    At least three quarters of the configurations that every worker ran reach this value. {} with fewer than three
    workers: of two, neither can be called the slow one.
    """
    workers = sorted({worker for by_worker in cells.values() for worker in by_worker})
    shared = [by_worker for by_worker in cells.values() if len(by_worker) == len(workers)]
    if len(workers) < 3 or not shared:
        return {}
    table = np.array([[by_worker[worker] for worker in workers] for by_worker in shared])
    deviations = table - np.median(table, axis=1, keepdims=True)
    return dict(zip(workers, np.quantile(deviations, 0.25, axis=0, method="lower").tolist(), strict=True))


def _residual_squares(table: Floats, *, by_worker: bool) -> Floats:
    """Return each row's residual sum of squares after subtracting row (and column) means; missing cells are NaN."""
    residuals = table - np.nanmean(table, axis=1, keepdims=True)
    if by_worker:
        for _ in range(_MAX_ROUNDS):
            columns = np.nanmean(residuals, axis=0)
            residuals = residuals - columns
            rows = np.nanmean(residuals, axis=1, keepdims=True)
            residuals = residuals - rows
            if max(np.abs(columns).max(), np.abs(rows).max()) < _CONVERGED:
                break
    return np.asarray(np.nansum(residuals * residuals, axis=1))


def _find_noisier(squares: Floats, sizes: NDArray[np.int64], columns: int, *, by_worker: bool) -> dict[int, Spread]:
    """Return the rows that are noisier than the others together, the noisiest first; at most a third of the rows."""
    remaining, noisier = list(range(len(squares))), {}
    for _ in range(len(squares) // 3):
        # A row contributes more than its own residuals, because the column means were shifted towards it.
        added = len(remaining) / (len(remaining) - 1.0) if by_worker else 1.0
        worst = max(remaining, key=lambda row: squares[row] / (sizes[row] - 1))
        others = [row for row in remaining if row != worst]
        rest = _pooled_spread(float(squares[remaining].sum() - squares[worst] * added), sizes[others], columns)
        if rest is None or rest.sd == 0.0:
            break
        own, df = float(squares[worst]) * added / (sizes[worst] - 1), float(sizes[worst] - 1)
        if student.f_tail(own / rest.sd**2, df, rest.df) * len(remaining) > NOISIER_LEVEL:
            break
        noisier[worst] = Spread(sd=own**0.5, df=df, is_own=True)
        remaining = others
    return noisier


def _pooled_spread(squares: float, sizes: NDArray[np.int64], columns: int) -> Spread | None:
    df = float(sizes.sum() - len(sizes) - columns + 1)
    return Spread(sd=max(0.0, squares / df) ** 0.5, df=df) if df >= 1 else None
