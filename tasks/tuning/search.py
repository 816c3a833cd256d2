"""Selection of the candidates to measure next, and the stopping rule. Optuna's journal makes the search resumable.

A search is successive halving with two rungs: waves of short trials, one trial per worker, then the best few in full.
Each wave has the candidates with the largest expected improvement (`tasks.tuning.search`). Waves end when no
candidate is expected to improve the rate by `MIN_IMPROVEMENT` and every recipe has been tried once.

Optuna's own samplers were tried and are not used: within ten trials a tree-structured Parzen estimator does not learn
which candidates are similar, and its proposals are guesses (figures: docs/performance.md, "The search").
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend

from tasks.tuning.space import DIMENSIONS, LAYOUTS, MICRO_BATCHES, RECOMPUTE, RECOMPUTED_SHARE, Candidate, MemoryLimit

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


MIN_IMPROVEMENT = 0.003  # minimum expected improvement of another trial, as a fraction of the best rate
CLOSE_FACTOR = 1.02  # short trials of one configuration differ by less between processes (docs/measurements.md: 0.7 %)
FAILURE_FACTOR = 0.1  # a failed trial counts as this fraction of its expected rate, so that the search avoids it
END_KEY = "end"  # the journal's key for the outcome of a trial, one of the three below
MEASURED, TOO_LARGE, BROKEN = "measured", "too large", "broken"
Outcomes = Mapping[str, tuple[str, float]]  # candidate key -> (outcome, useful tokens per second)


class Search:
    """A resumable search: the candidates, and their results in Optuna's journal.

    `results` maps a candidate's key to its useful tokens per second, None if it did not succeed.
    """

    def __init__(self, journal: Path, candidates: Sequence[Candidate], *, recipes: Sequence[str]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._by_choice = {_choice_key(candidate.choice): candidate for candidate in candidates}
        self._recipes = list(recipes)
        self._surrogate = Surrogate(candidates)
        self._study = optuna.create_study(
            study_name="tune",
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
            direction="maximize",
            load_if_exists=True,
        )

    @property
    def results(self) -> dict[str, float | None]:
        """Useful tokens per second by candidate key, None if the candidate did not succeed."""
        return {key: rate if end == MEASURED else None for key, (end, rate) in self._outcomes().items()}

    def next_wave(self, limit: MemoryLimit, count: int) -> list[Candidate]:
        """Return the next wave, up to `count` candidates; empty when the waves are over. See `choose_wave`."""
        return choose_wave(self._surrogate, self._outcomes(), limit, count)

    def finalists(self, limit: MemoryLimit, maximum: int) -> list[Candidate]:
        """Return the candidates to measure in full. See the function `finalists`."""
        return finalists(self._surrogate, self._outcomes(), limit, maximum)

    def record(self, candidate: Candidate, useful_tokens_per_sec: float | None, *, is_too_large: bool = False) -> None:
        """Record a candidate's rate, None if it did not succeed. A second call changes nothing.

        A candidate that was too large gives no information about speed, only to the memory model.
        """
        if candidate.key in self._outcomes():
            return
        end = TOO_LARGE if is_too_large else BROKEN if useful_tokens_per_sec is None else MEASURED
        self._study.add_trial(
            optuna.trial.create_trial(
                params=dict(candidate.choice),
                distributions=self._distributions(),
                value=useful_tokens_per_sec or 0.0,
                user_attrs={END_KEY: end},
            )
        )

    def _outcomes(self) -> Outcomes:
        known: dict[str, tuple[str, float]] = {}
        for trial in self._study.get_trials(deepcopy=False):
            candidate = self._by_choice.get(_choice_key(trial.params))
            if candidate is not None and END_KEY in trial.user_attrs:
                known[candidate.key] = (trial.user_attrs[END_KEY], trial.value or 0.0)
        return known

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        categorical = optuna.distributions.CategoricalDistribution
        values: Mapping[str, Sequence[Any]] = {
            "recipe": self._recipes,
            "layout": LAYOUTS,
            "micro_batch_size": MICRO_BATCHES,
            "recompute": tuple(RECOMPUTE),
        }
        return {name: categorical(list(values[name])) for name in DIMENSIONS}


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
    rates = {key: rate for key, (end, rate) in outcomes.items() if end == MEASURED and rate > 0.0}
    expected = surrogate.posterior(rates).mean
    broken = (
        index
        for index, candidate in enumerate(surrogate.candidates)
        if outcomes.get(candidate.key, ("", 0.0))[0] == BROKEN
    )
    return rates, {surrogate.candidates[index].key: FAILURE_FACTOR * math.exp(expected[index]) for index in broken}


def _choice_key(choice: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(choice.get(name) for name in DIMENSIONS)
