"""What is believed of candidates that were not measured, from those that were: arithmetic corrected by measurement.

A survey predicts every candidate's rate from FLOP, padding and how a batch fills a GPU (`bench.predict.survey`). That
orders candidates on a GPU like those it was made for, and may be wrong on another one: a recipe slower than it should
be, recomputation cheaper, small batches better. Each way to be wrong is a factor common to the candidates it touches,
and unknown until something is measured; so

    log rate = log prediction + one normal variable for each way to be wrong + the candidate's own + noise

with a standard deviation for each, `DOUBTS`. Their sum is a Gaussian process (Rasmussen and Williams 2006, "Gaussian
Processes for Machine Learning", equations 2.23 and 2.24), so one trial of a recipe teaches something about all others
of it, and how sure that is comes with it. What to try is what promises most over the best so far (expected improvement:
Jones, Schonlau and Welch 1998, "Efficient Global Optimization of Expensive Black-Box Functions").

The doubts are judgements about such predictions in general: a recipe may well be half as fast again or two thirds as
fast on a GPU that nobody has tried. They were settled by looking at replays on one GPU's figures and on GPUs made up to
be unlike it (`tests/benchmarks/tune_replay.py`), and are a fit to none of them. A search that starts from a wrong
prediction takes more trials, and ends at the same answer (`tests/unit/tasks/tuning/test_tuning.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.tuning.space import RECOMPUTED_SHARE, Candidate

# Standard deviations of log rate: 0.5 is a factor of 1.6 either way.
DOUBTS = {
    "gpu": 10.0,  # anything: predictions are for 1 TFLOP/s, and only their ratios mean something
    "recipe": 0.5,
    "layout": 0.2,
    "layout of a recipe": 0.1,
    "recomputation": 0.3,  # of every layer; of a part of them in proportion
    "recomputation of a recipe": 0.1,
    "offloading": 0.2,
    "batch": 0.25,
    "batch of a recipe": 0.1,
    "own": 0.06,
}
NOISE = 0.02  # of one short trial; docs/measurements.md has 0.7 % between processes, ragged data has more
BATCH_DOUBLINGS = 2.0  # so many doublings of the batch apart, errors are still alike (a Gaussian's width)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """For each candidate, in order: the mean and the standard deviation of its log rate."""

    mean: Sequence[float]
    deviation: Sequence[float]


class Belief:
    """Of all candidates. Made once for a search: what is known comes with each question."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._np = np
        self.candidates = list(candidates)
        self._place = {one.key: place for place, one in enumerate(self.candidates)}
        self._prior = np.log([max(one.score, 1e-9) for one in self.candidates])
        self._alike = self._covariance()

    def given(self, rates: Mapping[str, float], assumed: Mapping[str, float] | None = None) -> Expected:
        """With these rates measured, by key, all above 0. `assumed` are rates of others that are taken for measured,
        which makes their neighbours surer and surprises nobody.

        Measurements further from their predictions than the doubts allow widen all doubts, so that one that was wrong
        by much is not taken for the last (the doubts' common factor, by maximum likelihood, never below 1).
        """
        np = self._np
        known = {**rates, **(assumed or {})}
        at = [self._place[key] for key in known]
        variance = self._alike.diagonal()
        if not at:
            return Expected(mean=self._prior.tolist(), deviation=np.sqrt(variance).tolist())
        errors = np.log(list(known.values())) - self._prior[at]
        weights = np.linalg.solve(self._between(at), self._alike[at])
        left = np.maximum(variance - np.einsum("ij,ji->i", self._alike[:, at], weights), 0.0)
        first = len(rates)
        surprise = errors[:first] @ np.linalg.solve(self._between(at[:first]), errors[:first]) / max(1, first)
        deviation = np.sqrt(left * max(1.0, surprise))
        return Expected(mean=(self._prior + errors @ weights).tolist(), deviation=deviation.tolist())

    def promise(self, rates: Mapping[str, float], assumed: Mapping[str, float]) -> list[float]:
        """By how much each candidate is expected to improve on the best rate, as a part of it; where it would be slower
        counts as no improvement, not as a loss. Needs at least one rate."""
        best, said = math.log(max([*rates.values(), *assumed.values()])), self.given(rates, assumed)
        return [improvement(mean - best, deviation) for mean, deviation in zip(said.mean, said.deviation, strict=True)]

    def _between(self, at: list[int]) -> Any:
        """The covariance of what was measured at these places."""
        np = self._np
        return np.asarray(self._alike[np.ix_(at, at)] + NOISE**2 * np.eye(len(at)))

    def _covariance(self) -> Any:
        """How alike the errors of any two candidates' predictions are, an array of (candidates, candidates)."""
        np = self._np
        of = {name: np.array([one.choice[name] for one in self.candidates]) for name in ("recipe", "layout")}
        recipe, layout = (column[:, None] == column[None, :] for column in of.values())
        again = np.array([RECOMPUTED_SHARE[one.choice["recompute"]] for one in self.candidates])
        offloaded = np.array([one.choice["recompute"] == "offload" for one in self.candidates], dtype=float)
        size = np.log2([one.choice["micro_batch_size"] for one in self.candidates])
        batch = np.exp(-0.5 * ((size[:, None] - size[None, :]) / BATCH_DOUBLINGS) ** 2)
        alike = {
            "gpu": np.ones_like(batch),
            "recipe": recipe,
            "layout": layout,
            "layout of a recipe": layout & recipe,
            "recomputation": np.outer(again, again),
            "recomputation of a recipe": np.outer(again, again) * recipe,
            "offloading": np.outer(offloaded, offloaded),
            "batch": batch,
            "batch of a recipe": batch * recipe,
            "own": np.eye(len(self.candidates)),
        }
        return np.asarray(sum(DOUBTS[name] ** 2 * matrix for name, matrix in alike.items()))


def improvement(ahead: float, deviation: float) -> float:
    """E[max(0, e^z - 1)] for z normal with mean `ahead`: the expected gain where log rates differ by z."""
    if deviation <= 0.0:
        return max(0.0, math.expm1(ahead))
    above = ahead / deviation
    return math.exp(ahead + deviation**2 / 2) * _below(above + deviation) - _below(above)


def _below(x: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
