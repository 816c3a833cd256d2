"""How much processes of one run differ, from all its configurations together. Pure numpy.

A configuration on four workers tells its own noise with three degrees of freedom; twelve of them on the same workers
tell the noise they share with 33. What is left of the logarithms after each configuration's and each worker's own mean
is that noise. A configuration whose share of it is larger than chance allows (an F test at 1 % over all of them) keeps
its own, and the others' is taken without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.statistics import student

Floats = NDArray[np.float64]
NOISIER = 0.01
_ROUNDS = 50  # of taking out rows' and columns' means by turns, where cells are missing
_SETTLED = 1e-12


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviation of one unit's logarithm (a worker's mean, or a process on the only worker), and how many
    degrees of freedom it was measured with. `is_own` where the configuration is noisier than the others.
    """

    sd: float
    df: float
    is_own: bool = False


def spreads(cells: Mapping[str, Mapping[str, float]], *, by_worker: bool) -> dict[str, Spread]:
    """Configuration to its spread, from logarithms by configuration and unit; empty where nothing was repeated.

    With `by_worker` units are workers, the same for every configuration, and a worker's own speed is no noise.
    """
    rows = {label: found for label, found in cells.items() if len(found) > 1}
    columns = {
        unit: place for place, unit in enumerate(dict.fromkeys(unit for found in rows.values() for unit in found))
    }
    if not rows:
        return {}
    table = np.full((len(rows), len(columns)), np.nan)
    for place, found in enumerate(rows.values()):
        table[place, [columns[unit] for unit in found]] = list(found.values())
    known = ~np.isnan(table)
    squares, sizes = _left_over(table, by_worker=by_worker), known.sum(axis=1)
    labels, noisier = list(rows), _noisier(squares, sizes, len(columns) if by_worker else 1, by_worker=by_worker)
    calm = [place for place in range(len(labels)) if place not in noisier]
    if noisier:
        squares[calm] = _left_over(table[calm], by_worker=by_worker)
    shared = _shared(float(squares[calm].sum()), sizes[calm], len(columns) if by_worker else 1)
    if shared is None:
        return {}
    own = {labels[place]: spread for place, spread in noisier.items()}
    return {label: own.get(label, shared) for label in cells}


def of_differences(cells: Mapping[str, Mapping[str, float]]) -> dict[str, Spread]:
    """Configuration to the spread of one worker's difference between two runs, from differences by configuration and
    worker; only configurations with several workers have one.

    A worker may have changed between the runs, for all configurations alike; so the variance has a part of workers and
    a part of what is left, and the degrees of freedom are Satterthwaite's for their sum.
    """
    workers = {worker for found in cells.values() for worker in found}
    whole = [label for label, found in cells.items() if len(found) == len(workers) > 1]
    own = {label: _own(list(found.values())) for label, found in cells.items() if len(found) > 1}
    table = np.array([[cells[label][worker] for worker in sorted(workers)] for label in whole])
    if len(whole) < 2:
        return own
    sizes = np.full(len(whole), len(workers))
    noisier = _noisier(_left_over(table, by_worker=True), sizes, len(workers), by_worker=True)
    calm = [place for place in range(len(whole)) if place not in noisier]
    kinds, freedom = len(calm), len(workers) - 1.0
    of_workers = kinds * float(table[calm].mean(axis=0).var(ddof=1))
    left = float(_left_over(table[calm], by_worker=True).sum()) / ((kinds - 1.0) * freedom)
    parts = (of_workers / kinds, left * (kinds - 1.0) / kinds)
    lost = parts[0] ** 2 / freedom + parts[1] ** 2 / ((kinds - 1.0) * freedom)
    shared = Spread(sd=sum(parts) ** 0.5, df=sum(parts) ** 2 / lost if lost > 0 else kinds * freedom)
    return own | {whole[place]: shared for place in calm}


def _own(values: Sequence[float]) -> Spread:
    return Spread(sd=float(np.std(values, ddof=1)), df=len(values) - 1.0, is_own=True)


def slower_workers(cells: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Worker to how much more than the middle worker it takes, as a logarithm, in at least three quarters of the
    configurations that every worker ran. Empty with fewer than three workers: nobody can say which is the odd one.
    """
    workers = sorted({worker for found in cells.values() for worker in found})
    shared = [found for found in cells.values() if len(found) == len(workers)]
    if len(workers) < 3 or not shared:
        return {}
    table = np.array([[found[worker] for worker in workers] for found in shared])
    away = table - np.median(table, axis=1, keepdims=True)
    return dict(zip(workers, np.quantile(away, 0.25, axis=0, method="lower").tolist(), strict=True))


def _left_over(table: Floats, *, by_worker: bool) -> Floats:
    """Per row, the sum of squares that means of rows (and of columns) leave; missing cells are NaN."""
    rest = table - np.nanmean(table, axis=1, keepdims=True)
    if by_worker:
        for _ in range(_ROUNDS):
            columns = np.nanmean(rest, axis=0)
            rest = rest - columns
            rows = np.nanmean(rest, axis=1, keepdims=True)
            rest = rest - rows
            if max(np.abs(columns).max(), np.abs(rows).max()) < _SETTLED:
                break
    return np.asarray(np.nansum(rest * rest, axis=1))


def _noisier(squares: Floats, sizes: NDArray[np.int64], columns: int, *, by_worker: bool) -> dict[int, Spread]:
    """Rows that are noisier than the rest together, the worst first; a third of the rows at most."""
    left, found = list(range(len(squares))), {}
    for _ in range(len(squares) // 3):
        # What a row adds to the squares is more than what it keeps: its own mean was drawn towards it.
        added = len(left) / (len(left) - 1.0) if by_worker else 1.0
        worst = max(left, key=lambda place: squares[place] / (sizes[place] - 1))
        others = [place for place in left if place != worst]
        rest = _shared(float(squares[left].sum() - squares[worst] * added), sizes[others], columns)
        if rest is None or rest.sd == 0.0:
            break
        own, df = float(squares[worst]) * added / (sizes[worst] - 1), float(sizes[worst] - 1)
        if student.f_tail(own / rest.sd**2, df, rest.df) * len(left) > NOISIER:
            break
        found[worst] = Spread(sd=own**0.5, df=df, is_own=True)
        left = others
    return found


def _shared(squares: float, sizes: NDArray[np.int64], columns: int) -> Spread | None:
    df = float(sizes.sum() - len(sizes) - columns + 1)
    return Spread(sd=max(0.0, squares / df) ** 0.5, df=df) if df >= 1 else None
