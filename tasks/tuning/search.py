"""Which candidates to measure next. Optuna chooses, and its journal is what an interrupted search goes on from.

A search is successive halving with two rungs: waves of short trials, one trial a worker, then the best few in full.
The first wave takes the most promising candidate of each kind, because a sampler that knows nothing would spend its
first wave on guesses that arithmetic rules out; later waves are Optuna's tree of Parzen estimators. A search ends early
when a wave improves on the best by less than `ENOUGH`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.tuning.space import CHOICES, LAYOUTS, MICRO_BATCHES, RECOMPUTE, Candidate, MemoryLimit

if TYPE_CHECKING:
    import optuna

ENOUGH = 1.01  # the next wave must promise more than this to be worth its GPU time
CLOSE = 1.02  # short trials of one configuration differ by less between processes (docs/measurements.md: 0.7 %)
MEASURED = "measured"  # marks what a trial told, among what was only asked
ASKED_AT_MOST = 200  # questions for one candidate that is new and fits


class Search:
    """The candidates, what is known of each, and what to try next.

    `results` maps a candidate's key to its useful tokens a second, None where it did not succeed.
    """

    def __init__(self, journal: Path, candidates: Sequence[Candidate], *, recipes: Sequence[str], seed: int) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._by_choice = {_choice_key(one.choice): one for one in candidates}
        self._recipes = list(recipes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna marks its sampler's options as experimental, each time
            self._study = optuna.create_study(
                study_name="tune",
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(journal))),
                sampler=optuna.samplers.TPESampler(
                    seed=seed, multivariate=True, constant_liar=True, n_startup_trials=1, group=False
                ),
                direction="maximize",
                load_if_exists=True,
            )

    @property
    def results(self) -> dict[str, float | None]:
        known: dict[str, float | None] = {}
        for trial in self._study.get_trials(deepcopy=False):
            one = self._by_choice.get(_choice_key(trial.params))
            if one is not None and trial.user_attrs.get(MEASURED):
                known[one.key] = trial.value or None
        return known

    @property
    def best(self) -> float | None:
        """The best rate so far."""
        return max((rate for rate in self.results.values() if rate is not None), default=None)

    def next(self, limit: MemoryLimit, count: int) -> list[Candidate]:
        """Up to `count` candidates that fit and were never measured, as the sampler proposes them."""
        known, chosen = set(self.results), dict[str, Candidate]()
        for _ in range(ASKED_AT_MOST):
            if len(chosen) == count:
                break
            asked = self._study.ask(self._distributions())
            one = self._by_choice.get(_choice_key(asked.params))
            # What was only asked is told as failed, which the sampler leaves out of what it learns from.
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
            if one is not None and one.key not in known and one.key not in chosen and limit.fits(one):
                chosen[one.key] = one
        return list(chosen.values())

    def tell(self, candidate: Candidate, useful_tokens_per_sec: float | None) -> None:
        """Write down how a candidate did; once is enough, and a second time changes nothing.

        None, for one that did not succeed, counts as no tokens at all: the sampler is to stay away from there.
        """
        if candidate.key in self.results:
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=dict(candidate.choice),
                distributions=self._distributions(),
                value=useful_tokens_per_sec or 0.0,
                user_attrs={MEASURED: True},
            )
        )

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        categorical = self._optuna.distributions.CategoricalDistribution
        values: Mapping[str, Sequence[Any]] = {
            "recipe": self._recipes,
            "layout": LAYOUTS,
            "micro_batch_size": MICRO_BATCHES,
            "recompute": tuple(RECOMPUTE),
        }
        return {name: categorical(list(values[name])) for name in CHOICES}


def promising(candidates: Sequence[Candidate], limit: MemoryLimit, count: int) -> list[Candidate]:
    """The first wave: of those that fit the best of each recipe by prediction, then the best of all."""
    ranked = sorted((one for one in candidates if limit.fits(one)), key=lambda one: -one.score)
    best_of: dict[str, Candidate] = {}
    for one in ranked:
        best_of.setdefault(one.choice["recipe"], one)
    return list({one.key: one for one in (*best_of.values(), *ranked)}.values())[:count]


def finalists(candidates: Sequence[Candidate], results: Mapping[str, float | None], most: int) -> list[Candidate]:
    """What is measured in full, at most `most`: the fastest, whoever came so close that short trials cannot tell them
    apart, and, for the other end of the front, the smallest of those at least half as fast."""
    rates = {key: rate for key, rate in results.items() if rate is not None}
    ranked = sorted((one for one in candidates if one.key in rates), key=lambda one: -rates[one.key])
    if not ranked:
        return []
    best = rates[ranked[0].key]
    smallest = min((one for one in ranked if 2 * rates[one.key] >= best), key=lambda one: one.peak_bytes or 0)
    close = [one for one in ranked if rates[one.key] * CLOSE >= best]
    return list({one.key: one for one in (ranked[0], smallest, *close)}.values())[:most]


def goes_on(best_before: float | None, best_now: float | None) -> bool:
    """Is another wave worth its time? Not when the last one hardly improved on what was known before it."""
    return best_now is None or best_before is None or best_now > ENOUGH * best_before


def _choice_key(choice: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(choice.get(name) for name in CHOICES)
