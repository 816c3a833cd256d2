"""Selection of the candidates to measure next, and the stopping rule. Pure.

A search is successive halving with two rungs: waves of short trials, one trial per worker, then the best few in full.
Each wave has the candidates with the largest expected improvement. Waves end when no candidate is expected to improve
the rate by `MIN_IMPROVEMENT` and every recipe has been tried once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.tuning.space import RECOMPUTED_SHARE, Candidate, MemoryLimit

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
MIN_IMPROVEMENT = 0.003  # minimum expected improvement of another trial, as a fraction of the best rate
CLOSE_FACTOR = 1.02  # short trials of one configuration differ by less between processes (docs/measurements.md: 0.7 %)
_MAX_LOG = 700.0  # larger logarithms have no exponential
FAILURE_FACTOR = 0.1  # a failed trial counts as this fraction of its expected rate, so that the search avoids it
# Candidate key -> useful tokens per second; 0.0 if its trial failed. None if it ran out of memory, which says nothing
# about its speed.
Outcomes = Mapping[str, float | None]


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
        mean = np.clip(self._prior + errors @ weights, -_MAX_LOG, _MAX_LOG)
        return Prediction(mean=mean.tolist(), deviation=deviation.tolist())

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
    return math.exp(min(mean + deviation**2 / 2, _MAX_LOG)) * _normal_cdf(standardized + deviation) - _normal_cdf(
        standardized
    )


def _normal_cdf(x: float) -> float:
    """Evaluate the standard normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def choose_wave(surrogate: Surrogate, outcomes: Outcomes, limit: MemoryLimit, count: int) -> list[Candidate]:
    """Choose up to `count` untried candidates that fit and improve by `MIN_IMPROVEMENT`, the best first.

    Each recipe is tried once before a search ends, because a wrong prediction of a whole recipe costs most. The
    candidates of one wave are chosen one after the other, each as if the earlier ones had reached their expected rates;
    otherwise all workers would get nearly the same candidate.
    """
    rates, assumed = _rates(surrogate, outcomes)
    indices = {candidate.key: number for number, candidate in enumerate(surrogate.candidates)}
    remaining = {
        key: number
        for key, number in indices.items()
        if key not in outcomes and limit.fits(surrogate.candidates[number])
    }
    tried = {surrogate.candidates[indices[key]].choice["recipe"] for key in outcomes}
    wave: list[Candidate] = []
    while remaining and len(wave) < count:
        index = _best_candidate(surrogate, rates, assumed, remaining, tried)
        if index is None:
            break
        chosen = surrogate.candidates[index]
        wave.append(chosen)
        tried.add(chosen.choice["recipe"])
        assumed[chosen.key] = math.exp(surrogate.posterior(rates, assumed).mean[index])
        del remaining[chosen.key]
    return wave


def _best_candidate(
    surrogate: Surrogate,
    rates: Mapping[str, float],
    assumed: Mapping[str, float],
    remaining: Mapping[str, int],
    tried: set[str],
) -> int | None:
    """Return the index of the remaining candidate to try next; None if no trial is worthwhile."""
    if not rates and not assumed:
        return max(remaining.values(), key=lambda index: surrogate.candidates[index].score)
    improvements = surrogate.expected_improvements(rates, assumed)
    best = max(remaining.values(), key=improvements.__getitem__)
    if improvements[best] >= MIN_IMPROVEMENT:
        return best
    untried = [index for index in remaining.values() if surrogate.candidates[index].choice["recipe"] not in tried]
    return max(untried, key=improvements.__getitem__, default=None)


def finalists(surrogate: Surrogate, outcomes: Outcomes, limit: MemoryLimit, maximum: int) -> list[Candidate]:
    """Choose at most `maximum` candidates to measure in full.

    These are the fastest, the smallest that is expected to be at least half as fast (tried or not), and those too close
    to the fastest for short trials to decide.
    """
    rates, assumed = _rates(surrogate, outcomes)
    ranked = sorted(
        (candidate for candidate in surrogate.candidates if candidate.key in rates),
        key=lambda candidate: -rates[candidate.key],
    )
    if not ranked:
        return []
    best, means = rates[ranked[0].key], surrogate.posterior(rates, assumed).mean
    expected = dict(zip((candidate.key for candidate in surrogate.candidates), means, strict=True))
    fast_enough = [
        candidate
        for candidate in surrogate.candidates
        if limit.fits(candidate)
        and expected[candidate.key] >= math.log(best / 2)
        and (candidate.key in rates or candidate.key not in outcomes)
    ]
    smallest = min(
        fast_enough or ranked, key=lambda candidate: (limit.corrected_peak(candidate) or 0, -expected[candidate.key])
    )
    close = [candidate for candidate in ranked if rates[candidate.key] * CLOSE_FACTOR >= best]
    return list({candidate.key: candidate for candidate in (ranked[0], smallest, *close)}.values())[:maximum]


def _rates(surrogate: Surrogate, outcomes: Outcomes) -> tuple[dict[str, float], dict[str, float]]:
    """Return the measured rates by key, and the assumed rates of failed trials by key."""
    rates = {key: rate for key, rate in outcomes.items() if rate}
    expected = surrogate.posterior(rates).mean
    failed = {
        candidate.key: FAILURE_FACTOR * math.exp(mean)
        for candidate, mean in zip(surrogate.candidates, expected, strict=True)
        if outcomes.get(candidate.key) == 0.0
    }
    return rates, failed
