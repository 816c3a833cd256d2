"""Which candidates to measure next, and when to stop. An interrupted search goes on from Optuna's journal.

A search is successive halving with two rungs: waves of short trials, one trial a worker, then the best few in full.
Each wave takes the candidates with the largest expected improvement (`tasks.tuning.surrogate`). Waves end when no
candidate is expected to add more than `WORTH` and every recipe has been tried once.

Optuna's own samplers were tried and are not used: within ten trials a tree of Parzen estimators learns nothing of which
candidates are alike, and its proposals are guesses (figures: docs/performance.md, "The search").
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from tasks.tuning.space import CHOICES, LAYOUTS, MICRO_BATCHES, RECOMPUTE, Candidate, MemoryLimit
from tasks.tuning.surrogate import Surrogate

WORTH = 0.003  # the part of the best rate that another trial must be expected to add
CLOSE = 1.02  # short trials of one configuration differ by less between processes (docs/measurements.md: 0.7 %)
FAILURE = 0.1  # a trial that broke counts as this part of its expected rate, so that the search stays away
END = "end"  # a journal entry's key for how the trial ended, one of the three below
MEASURED, TOO_LARGE, BROKEN = "measured", "too large", "broken"
Outcomes = Mapping[str, tuple[str, float]]  # by a candidate's key: how it ended, and its useful tokens a second


class Search:
    """The candidates and their results, also after an interruption.

    `results` maps a candidate's key to its useful tokens a second, None where it did not succeed.
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
        return {key: rate if end == MEASURED else None for key, (end, rate) in self._outcomes().items()}

    def next(self, limit: MemoryLimit, count: int) -> list[Candidate]:
        """The next wave, up to `count` candidates; empty when the waves are over. See `choose`."""
        return choose(self._surrogate, self._outcomes(), limit, count)

    def finalists(self, limit: MemoryLimit, most: int) -> list[Candidate]:
        return finalists(self._surrogate, self._outcomes(), limit, most)

    def tell(self, candidate: Candidate, useful_tokens_per_sec: float | None, *, is_too_large: bool = False) -> None:
        """Record a candidate's rate, None where it did not succeed. A second time changes nothing.

        A candidate that was too large says nothing about speed; only the memory model learns from it.
        """
        if candidate.key in self._outcomes():
            return
        end = TOO_LARGE if is_too_large else BROKEN if useful_tokens_per_sec is None else MEASURED
        self._study.add_trial(
            optuna.trial.create_trial(
                params=dict(candidate.choice),
                distributions=self._distributions(),
                value=useful_tokens_per_sec or 0.0,
                user_attrs={END: end},
            )
        )

    def _outcomes(self) -> Outcomes:
        known: dict[str, tuple[str, float]] = {}
        for trial in self._study.get_trials(deepcopy=False):
            one = self._by_choice.get(_choice_key(trial.params))
            if one is not None and END in trial.user_attrs:
                known[one.key] = (trial.user_attrs[END], trial.value or 0.0)
        return known

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        categorical = optuna.distributions.CategoricalDistribution
        values: Mapping[str, Sequence[Any]] = {
            "recipe": self._recipes,
            "layout": LAYOUTS,
            "micro_batch_size": MICRO_BATCHES,
            "recompute": tuple(RECOMPUTE),
        }
        return {name: categorical(list(values[name])) for name in CHOICES}


def choose(surrogate: Surrogate, outcomes: Outcomes, limit: MemoryLimit, count: int) -> list[Candidate]:
    """The next wave: up to `count` untried candidates that fit and promise more than `WORTH`, the best first.

    Each recipe is tried once before a search ends, because a prediction that is wrong about a whole recipe costs most.
    The candidates of one wave are chosen one after the other, each as if those before it had met their expectation;
    otherwise all workers would get nearly the same candidate.
    """
    rates, assumed = _known(surrogate, outcomes)
    places = {one.key: index for index, one in enumerate(surrogate.candidates)}
    left = {
        key: index for key, index in places.items() if key not in outcomes and limit.fits(surrogate.candidates[index])
    }
    tried = {surrogate.candidates[places[key]].choice["recipe"] for key in outcomes}
    chosen: list[Candidate] = []
    while left and len(chosen) < count:
        place = _most_promising(surrogate, rates, assumed, left, tried)
        if place is None:
            break
        one = surrogate.candidates[place]
        chosen.append(one)
        tried.add(one.choice["recipe"])
        assumed[one.key] = math.exp(surrogate.given(rates, assumed).mean[place])
        del left[one.key]
    return chosen


def _most_promising(
    surrogate: Surrogate,
    rates: Mapping[str, float],
    assumed: Mapping[str, float],
    left: Mapping[str, int],
    tried: set[str],
) -> int | None:
    """The place of the candidate to try, of those left; None where none is worth it."""
    if not rates and not assumed:
        return max(left.values(), key=lambda place: surrogate.candidates[place].score)
    promised = surrogate.promise(rates, assumed)
    place = max(left.values(), key=promised.__getitem__)
    if promised[place] >= WORTH:
        return place
    untried = [place for place in left.values() if surrogate.candidates[place].choice["recipe"] not in tried]
    return max(untried, key=promised.__getitem__, default=None)


def finalists(surrogate: Surrogate, outcomes: Outcomes, limit: MemoryLimit, most: int) -> list[Candidate]:
    """What is measured in full, at most `most`: the fastest; the smallest that should be at least half as fast, tried
    or not; and those too close to the fastest for short trials to tell."""
    rates, assumed = _known(surrogate, outcomes)
    ranked = sorted(
        (candidate for candidate in surrogate.candidates if candidate.key in rates),
        key=lambda candidate: -rates[candidate.key],
    )
    if not ranked:
        return []
    best, means = rates[ranked[0].key], surrogate.given(rates, assumed).mean
    expected = dict(zip((candidate.key for candidate in surrogate.candidates), means, strict=True))
    quick = [
        candidate
        for candidate in surrogate.candidates
        if limit.fits(candidate)
        and expected[candidate.key] >= math.log(best / 2)
        and (candidate.key in rates or candidate.key not in outcomes)
    ]
    smallest = min(quick or ranked, key=lambda one: (limit.corrected(one) or 0, -expected[one.key]))
    close = [one for one in ranked if rates[one.key] * CLOSE >= best]
    return list({one.key: one for one in (ranked[0], smallest, *close)}.values())[:most]


def _known(surrogate: Surrogate, outcomes: Outcomes) -> tuple[dict[str, float], dict[str, float]]:
    """Rates by key: those that were measured, and those that stand for trials that broke."""
    rates = {key: rate for key, (end, rate) in outcomes.items() if end == MEASURED and rate > 0.0}
    expected = surrogate.given(rates).mean
    broken = (place for place, one in enumerate(surrogate.candidates) if outcomes.get(one.key, ("", 0.0))[0] == BROKEN)
    return rates, {surrogate.candidates[place].key: FAILURE * math.exp(expected[place]) for place in broken}


def _choice_key(choice: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(choice.get(name) for name in CHOICES)
