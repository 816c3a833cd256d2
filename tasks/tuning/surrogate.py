"""The expected rate of every candidate, from arithmetic corrected by the candidates that were measured.

A survey predicts every candidate's rate from FLOP, padding and how a batch fills a GPU (`bench.predict.throughput`). These
predictions may be wrong on another GPU: a recipe slower, recomputation cheaper, small batches better. Each such error
is a factor that is common to the candidates it touches, and unknown until something is measured:

    log rate = log prediction + one normal variable for each kind of error + the candidate's own + noise

with a standard deviation for each, `DOUBTS`. Their sum is a Gaussian process (Rasmussen and Williams 2006, "Gaussian
Processes for Machine Learning", equations 2.23 and 2.24), so one trial of a recipe says something about every other
trial of it, and how sure that is. The next candidate is the one with the largest expected improvement over the best so
far (Jones, Schonlau and Welch 1998, "Efficient Global Optimization of Expensive Black-Box Functions").

The standard deviations are judgements: on an untried GPU a recipe may be half as fast again, or two thirds as fast.
They were chosen by looking at replays of one GPU's figures and of made-up GPUs unlike it
(`tests/benchmarks/tune_replay.py`), and are fitted to none of them. A search that starts from wrong predictions takes
more trials and ends at the same answer (`tests/unit/tasks/tuning/test_tuning.py`).
"""

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
class Prediction:
    """For each candidate, in order: the mean and the standard deviation of its log rate."""

    mean: Sequence[float]
    deviation: Sequence[float]


class Surrogate:
    """The Gaussian process over all candidates. It keeps no measurements; they come with each call."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = list(candidates)
        self._place = {one.key: place for place, one in enumerate(self.candidates)}
        self._prior = np.log([max(candidate.score, 1e-9) for candidate in self.candidates])
        self._alike = self._covariance()

    def given(self, rates: Mapping[str, float], assumed: Mapping[str, float] | None = None) -> Prediction:
        """Given these measured rates by key, all above 0. `assumed` are expected rates that count as measured: they
        make their neighbours surer, and cannot be a surprise.

        Measurements further from their predictions than DOUBTS allow widen all doubts by a common factor (by maximum
        likelihood, never below 1).
        """
        known = {**rates, **(assumed or {})}
        at = [self._place[key] for key in known]
        variance = self._alike.diagonal()
        if not at:
            return Prediction(mean=self._prior.tolist(), deviation=np.sqrt(variance).tolist())
        errors = np.log(list(known.values())) - self._prior[at]
        weights = np.linalg.solve(self._between(at), self._alike[at])
        left = np.maximum(variance - np.einsum("ij,ji->i", self._alike[:, at], weights), 0.0)
        first = len(rates)
        surprise = errors[:first] @ np.linalg.solve(self._between(at[:first]), errors[:first]) / max(1, first)
        deviation = np.sqrt(left * max(1.0, surprise))
        return Prediction(mean=(self._prior + errors @ weights).tolist(), deviation=deviation.tolist())

    def promise(self, rates: Mapping[str, float], assumed: Mapping[str, float]) -> list[float]:
        """Each candidate's expected improvement on the best rate, as a part of it. Needs at least one rate.

        Where a candidate would be slower, that counts as no improvement and not as a loss.
        """
        best, expected = math.log(max([*rates.values(), *assumed.values()])), self.given(rates, assumed)
        pairs = zip(expected.mean, expected.deviation, strict=True)
        return [improvement(mean - best, deviation) for mean, deviation in pairs]

    def _between(self, at: list[int]) -> Any:
        """The covariance of what was measured at these places."""
        return np.asarray(self._alike[np.ix_(at, at)] + NOISE**2 * np.eye(len(at)))

    def _covariance(self) -> Any:
        """How alike the errors of any two candidates' predictions are, an array of (candidates, candidates)."""
        of = {
            name: np.array([candidate.choice[name] for candidate in self.candidates]) for name in ("recipe", "layout")
        }
        recipe, layout = (column[:, None] == column[None, :] for column in of.values())
        again = np.array([RECOMPUTED_SHARE[candidate.choice["recompute"]] for candidate in self.candidates])
        offloaded = np.array([candidate.choice["recompute"] == "offload" for candidate in self.candidates], dtype=float)
        size = np.log2([candidate.choice["micro_batch_size"] for candidate in self.candidates])
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
