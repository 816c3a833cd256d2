"""Surrogate model of the search: the expected rate of every candidate, from arithmetic and from measured candidates.

A survey predicts each candidate's rate from FLOP, padding and the GPU's utilization by a batch
(`bench.predict.throughput`). On another GPU these predictions may be wrong: a recipe slower, recomputation cheaper,
small batches better. Each such error is a factor shared by the candidates that it affects, unknown until one of them is
measured:

    log rate = log prediction + one normal variable for each kind of error + the candidate's own + noise

with the standard deviations `PRIOR_DEVIATIONS`. The sum is a Gaussian process (Rasmussen and Williams 2006, "Gaussian
Processes for Machine Learning", equations 2.23 and 2.24), so one trial of a recipe gives information, with its
uncertainty, about all other candidates of that recipe. The next candidate is the one with the largest expected
improvement over the best so far (Jones, Schonlau and Welch 1998, "Efficient Global Optimization of Expensive Black-Box
Functions").

The standard deviations are judgements: on an untested GPU a recipe may be 1.5 times as fast as predicted, or two thirds
as fast. They were chosen by inspecting replays of one GPU's figures and of synthetic GPUs that differ from it
(`tests/benchmarks/tune_replay.py`), and are fitted to none of them. A search that starts from wrong predictions needs
more trials and ends at the same answer (`tests/unit/tasks/tuning/test_tuning.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.tuning.space import RECOMPUTED_SHARE, Candidate

# Standard deviations of log rate: 0.5 is a factor of 1.6 either way.
PRIOR_DEVIATIONS = {
    "gpu": 10.0,  # uninformative: predictions are for 1 TFLOP/s, and only their ratios are meaningful
    "recipe": 0.5,
    "layout": 0.2,
    "layout of a recipe": 0.1,
    "recomputation": 0.3,  # if every layer is recomputed; proportional otherwise
    "recomputation of a recipe": 0.1,
    "offloading": 0.2,
    "batch": 0.25,
    "batch of a recipe": 0.1,
    "own": 0.06,
}
NOISE_DEVIATION = 0.02  # one short trial; docs/measurements.md has 0.7 % between processes, ragged data has more
BATCH_LENGTH_SCALE = 2.0  # in doublings of the batch: the width of the Gaussian kernel


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The mean and the standard deviation of each candidate's log rate, in the candidates' order."""

    mean: Sequence[float]
    deviation: Sequence[float]


class Surrogate:
    """The Gaussian process over all candidates. It stores no measurements; each call passes them."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = list(candidates)
        self._index = {candidate.key: index for index, candidate in enumerate(self.candidates)}
        self._prior = np.log([max(candidate.score, 1e-9) for candidate in self.candidates])
        self._covariance = self._prior_covariance()

    def posterior(self, rates: Mapping[str, float], assumed: Mapping[str, float] | None = None) -> Prediction:
        """Predict all candidates' log rates from these measured rates by key, all above 0.

        `assumed` are expected rates that count as measured: they reduce the variance of similar candidates, but do not
        enter the correction below. Measurements further from their predictions than `PRIOR_DEVIATIONS` allow widen all
        deviations by a common factor (by maximum likelihood, never below 1).
        """
        known = {**rates, **(assumed or {})}
        indices = [self._index[key] for key in known]
        variance = self._covariance.diagonal()
        if not indices:
            return Prediction(mean=self._prior.tolist(), deviation=np.sqrt(variance).tolist())
        errors = np.log(list(known.values())) - self._prior[indices]
        weights = np.linalg.solve(self._measured_covariance(indices), self._covariance[indices])
        remaining_variance = np.maximum(variance - np.einsum("ij,ji->i", self._covariance[:, indices], weights), 0.0)
        measured_count = len(rates)
        variance_scale = (
            errors[:measured_count]
            @ np.linalg.solve(self._measured_covariance(indices[:measured_count]), errors[:measured_count])
            / max(1, measured_count)
        )
        deviation = np.sqrt(remaining_variance * max(1.0, variance_scale))
        return Prediction(mean=(self._prior + errors @ weights).tolist(), deviation=deviation.tolist())

    def expected_improvements(self, rates: Mapping[str, float], assumed: Mapping[str, float]) -> list[float]:
        """Return each candidate's expected improvement, as a fraction of the best rate. Needs at least one rate.

        A slower candidate counts as no improvement, not as a loss.
        """
        best, expected = math.log(max([*rates.values(), *assumed.values()])), self.posterior(rates, assumed)
        pairs = zip(expected.mean, expected.deviation, strict=True)
        return [expected_improvement(mean - best, deviation) for mean, deviation in pairs]

    def _measured_covariance(self, indices: list[int]) -> Any:
        """Return the covariance, with noise, of the measurements of the candidates with these indices."""
        return np.asarray(self._covariance[np.ix_(indices, indices)] + NOISE_DEVIATION**2 * np.eye(len(indices)))

    def _prior_covariance(self) -> Any:
        """Compute the covariance of the candidates' prediction errors, an array of (candidates, candidates)."""
        columns = {
            name: np.array([candidate.choice[name] for candidate in self.candidates]) for name in ("recipe", "layout")
        }
        recipe, layout = (column[:, None] == column[None, :] for column in columns.values())
        recomputed = np.array([RECOMPUTED_SHARE[candidate.choice["recompute"]] for candidate in self.candidates])
        offloaded = np.array([candidate.choice["recompute"] == "offload" for candidate in self.candidates], dtype=float)
        size = np.log2([candidate.choice["micro_batch_size"] for candidate in self.candidates])
        batch = np.exp(-0.5 * ((size[:, None] - size[None, :]) / BATCH_LENGTH_SCALE) ** 2)
        terms = {
            "gpu": np.ones_like(batch),
            "recipe": recipe,
            "layout": layout,
            "layout of a recipe": layout & recipe,
            "recomputation": np.outer(recomputed, recomputed),
            "recomputation of a recipe": np.outer(recomputed, recomputed) * recipe,
            "offloading": np.outer(offloaded, offloaded),
            "batch": batch,
            "batch of a recipe": batch * recipe,
            "own": np.eye(len(self.candidates)),
        }
        return np.asarray(sum(PRIOR_DEVIATIONS[name] ** 2 * matrix for name, matrix in terms.items()))


def expected_improvement(mean: float, deviation: float) -> float:
    """Compute E[max(0, e^z - 1)] for a normal z with this mean: the expected gain if log rates differ by z."""
    if deviation <= 0.0:
        return max(0.0, math.expm1(mean))
    standardized = mean / deviation
    return math.exp(mean + deviation**2 / 2) * _normal_cdf(standardized + deviation) - _normal_cdf(standardized)


def _normal_cdf(x: float) -> float:
    """Evaluate the standard normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
