"""Search of the fastest candidate: trials are answered by a function, everything else is real."""

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tasks.tuning import search, space, tune
from tasks.tuning.space import Candidate, MemoryLimit, TrialObservation
from tests.support.tuning_candidates import (
    BY_KEY,
    GIB,
    RECIPES,
    STOCK,
    find_fast,
    make_candidates,
    predicted_candidates,
)

# The space -----------------------------------------------------------------------------------------------------------


def test_the_candidates_are_distinct_and_only_the_fast_recipe_recomputes_in_part():
    names = [candidate.key for candidate in make_candidates()]
    assert len(names) == len(set(names)) == 3 * 7 * (2 + 2 + 5)
    assert {candidate.choice["recompute"] for candidate in make_candidates(recipes=("stock",))} == {"none", "all"}
    assert max(candidate.trial.micro_batch_size for candidate in make_candidates(samples=5)) == 4


def test_products_in_8_bits_are_searched_where_a_setting_names_them():
    candidates = make_candidates(recipes=("fast", "fast-int8-backward", "fast-int8"))
    products = Counter(candidate.trial.matmul for candidate in candidates)
    assert products == {"bf16": 105, "int8_backward": 105, "int8": 105}
    assert {candidate.trial.recipe for candidate in candidates} == {"fast"}
    assert len({candidate.key for candidate in candidates}) == len(candidates)
    assert {candidate.trial.matmul for candidate in make_candidates()} == {"bf16"}, "and nowhere else"


@pytest.mark.parametrize(
    ("percent", "profile", "positions", "longest"),
    [(99, "gpu", 32768, 640), (100, "gpu", 32768, 4032), (100, "gpu", 2048, 2048), (99, "tiny", 512, 80)],
)
def test_rows_are_as_long_as_the_samples_that_are_kept_whole(percent, profile, positions, longest):
    assert space.max_seq_len({"99": 584, "100": 4001}, percent, profile, positions) == longest


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "gpu", "expected"),
    [
        (12.0, {"memory_bytes": 24 * GIB, "largest_peak_bytes": 21 * GIB}, 12 * GIB),
        (None, {"memory_bytes": 24 * GIB, "largest_peak_bytes": 21 * GIB}, 21 * GIB),
        (None, {"memory_bytes": None, "largest_peak_bytes": None}, None),
        (None, None, None),
    ],
)
def test_without_a_limit_of_the_user_the_worker_says_what_fits_its_gpu(limit, gpu, expected):
    assert tune._limit_bytes(limit, gpu) == expected


EIGHT, LIMIT = find_fast(8), MemoryLimit(21 * GIB)
PEAK = EIGHT.peak_bytes or 0


def test_a_prediction_close_to_the_limit_does_not_count_as_fitting():
    assert all(MemoryLimit(None).fits(candidate) for candidate in predicted_candidates())
    assert not MemoryLimit(round(PEAK * 1.02)).fits(EIGHT)
    assert MemoryLimit(round(PEAK * 1.04)).fits(EIGHT)


def test_a_measured_peak_corrects_its_recipe_and_no_other():
    limit = MemoryLimit(40 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=round(PEAK * 1.2))])
    assert limit.corrected_peak(find_fast(4)) == pytest.approx((find_fast(4).peak_bytes or 0) * 1.2, rel=1e-6)
    assert set(limit.factors) == {"fast"}


def test_running_out_of_memory_raises_the_prediction_until_it_says_so():
    limit = MemoryLimit(20 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=None)])
    assert [limit.fits(candidate) for candidate in (EIGHT, find_fast(16), find_fast(1, "all"))] == [False, False, True]


def test_as_many_layers_are_held_as_the_corrected_prediction_has_room_for():
    limit = MemoryLimit(21 * GIB, [TrialObservation(candidate=EIGHT, peak_bytes=round(PEAK * 1.2))])
    held = space.with_held_layers(EIGHT, limit, 32)
    more = dataclasses.replace(held, peak_bytes=(held.peak_bytes or 0) + EIGHT.layer_bytes)
    assert limit.fits(held)
    assert not limit.fits(more)
    assert held.key == f"{EIGHT.key}-held-{held.trial.held_layers}"
    assert held.trial.digest() == dataclasses.replace(EIGHT.trial, held_layers=held.trial.held_layers).digest()
    assert held.peak_bytes == PEAK + held.trial.held_layers * EIGHT.layer_bytes
    assert space.with_held_layers(EIGHT, limit, 3).trial.held_layers == 3, "a model has no more layers than it has"


def test_nothing_is_held_without_room_a_limit_or_a_recipe_that_can():
    assert space.with_held_layers(EIGHT, MemoryLimit(round(PEAK * 1.04)), 32) is None
    assert space.with_held_layers(EIGHT, MemoryLimit(None), 32) is None
    assert space.with_held_layers(STOCK, MemoryLimit(80 * GIB), 32) is None


# The surrogate -------------------------------------------------------------------------------------------------------


def predicted_rate(expected: search.Prediction, candidate: Candidate) -> float:
    return math.exp(expected.mean[list(BY_KEY).index(candidate.key)])


def test_a_measurement_sets_its_candidate_and_moves_similar_ones_most():
    measured, similar = find_fast(4), find_fast(2)
    known = {EIGHT.key: EIGHT.score, STOCK.key: STOCK.score}
    before = search.Surrogate(predicted_candidates()).posterior({**known, measured.key: measured.score})
    after = search.Surrogate(predicted_candidates()).posterior({**known, measured.key: measured.score / 2})
    moved = [
        predicted_rate(after, candidate) / predicted_rate(before, candidate) for candidate in (measured, similar, STOCK)
    ]
    assert moved[0] == pytest.approx(0.5, rel=0.1)
    assert moved[1] < 0.8 < 0.95 < moved[2]


def test_a_gpu_of_another_speed_leaves_the_order_as_it_was():
    assert predicted_rate(search.Surrogate(predicted_candidates()).posterior({}), EIGHT) == pytest.approx(EIGHT.score)
    expected = search.Surrogate(predicted_candidates()).posterior({EIGHT.key: 700.0 * EIGHT.score})
    for other in predicted_candidates():
        assert predicted_rate(expected, other) / other.score == pytest.approx(700.0, rel=0.1)


def test_measured_candidates_have_less_variance_and_a_surprise_raises_all_variances():
    other = find_fast(4)
    surrogate = search.Surrogate(predicted_candidates())
    as_expected = surrogate.posterior({EIGHT.key: EIGHT.score, other.key: other.score}).deviation
    surprised = surrogate.posterior({EIGHT.key: EIGHT.score, other.key: other.score / 50}).deviation
    known = dict(zip(BY_KEY, as_expected, strict=True))
    assert known[EIGHT.key] < min(known[key] for key in BY_KEY if key not in (EIGHT.key, other.key))
    assert all(after > before for before, after in zip(as_expected, surprised, strict=True))


def test_the_expected_improvement_is_the_mean_gain():
    rng = random.Random(3)
    for mean, deviation in ((0.0, 0.1), (-0.2, 0.3), (0.1, 0.05)):
        samples = [max(0.0, math.expm1(rng.gauss(mean, deviation))) for _ in range(200_000)]
        assert search.expected_improvement(mean, deviation) == pytest.approx(sum(samples) / len(samples), rel=0.03)
    assert search.expected_improvement(-0.1, 0.0) == 0.0
    assert search.expected_improvement(0.1, 0.0) == pytest.approx(math.expm1(0.1))


# The search ----------------------------------------------------------------------------------------------------------

RateFunction = Callable[[Candidate], float]


def true_rate(candidate: Candidate) -> float:
    """Return what a trial would measure: the score, and 15 % more for a batch of 16."""
    return candidate.score * (1.15 if candidate.choice["micro_batch_size"] == 16 else 1.0)


@dataclasses.dataclass
class Finder:
    """A search whose trials `measure` answers."""

    measure: Callable[[Candidate], float | None] = true_rate
    limit: MemoryLimit = LIMIT

    def __post_init__(self) -> None:
        self.surrogate, self.outcomes = search.Surrogate(predicted_candidates()), dict[str, float | None]()

    def wave(self, count: int = 4) -> list[Candidate]:
        return search.choose_wave(self.surrogate, self.outcomes, self.limit, count)

    def run(self, count: int = 4) -> "Finder":
        while wave := self.wave(min(count, 16 - len(self.outcomes))):
            self.outcomes.update({candidate.key: self.measure(candidate) for candidate in wave})
        return self

    def finalists(self, maximum: int = 3) -> list[Candidate]:
        return search.finalists(self.surrogate, self.outcomes, self.limit, maximum)

    @property
    def best_rate(self) -> float:
        return max(filter(None, self.outcomes.values()))


def test_the_first_wave_begins_with_the_best_prediction_and_is_not_one_guess_four_times():
    wave = Finder().wave()
    assert wave[0].score == max(candidate.score for candidate in predicted_candidates() if LIMIT.fits(candidate))
    assert len({candidate.choice["recipe"] for candidate in wave}) > 1


@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(lambda _: 1.0, id="nothing"),
        pytest.param(
            lambda c: {"all": 1.5, "offload": 1.4, "every-2": 1.2}.get(c["recompute"], 1.0), id="free recomputing"
        ),
        pytest.param(lambda c: 2.0 if c["recipe"] == "stock" else 1.0, id="stock is the fastest"),
        pytest.param(lambda c: 4.0 if c["recipe"] == "reference" else 1.0, id="reference is the fastest"),
        pytest.param(lambda c: c["micro_batch_size"] ** -0.5, id="small batches are the fastest"),
    ],
)
def test_a_search_finds_the_best_where_its_predictions_are_wrong(factor):
    def world(candidate: Candidate) -> float:
        return true_rate(candidate) * factor(candidate.choice)

    fitting = [candidate for candidate in predicted_candidates() if LIMIT.fits(candidate)]
    finder = Finder(world).run()
    assert finder.best_rate >= 0.98 * max(map(world, fitting))
    assert len(finder.outcomes) <= 0.15 * len(fitting)
    assert {BY_KEY[key].choice["recipe"] for key in finder.outcomes} == set(RECIPES), "each once"


def test_nothing_is_measured_that_does_not_fit():
    finder = Finder(limit=MemoryLimit(9 * GIB)).run()
    assert finder.outcomes
    assert all(finder.limit.fits(BY_KEY[key]) for key in finder.outcomes)


def test_a_recipe_that_fails_is_avoided():
    finder = Finder(lambda candidate: 0.0 if candidate.choice["recipe"] == "fast" else true_rate(candidate)).run(2)
    assert len([key for key in finder.outcomes if BY_KEY[key].choice["recipe"] == "fast"]) <= 4
    assert {finalist.choice["recipe"] for finalist in finder.finalists()} <= {"stock", "reference"}


def test_a_candidate_that_was_too_large_gives_no_information_about_speed():
    finder = Finder()
    (first,) = finder.wave(1)
    finder.outcomes[first.key] = None
    (again,) = finder.wave(1)
    assert again.choice["recipe"] == first.choice["recipe"]
    assert not finder.finalists(), "it is never the best"


def test_the_finalists_are_the_fastest_and_the_smallest_that_should_be_half_as_fast():
    finder = Finder().run()
    best, smallest, *close = finder.finalists()
    assert true_rate(best) == finder.best_rate
    assert true_rate(smallest) >= 0.45 * true_rate(best)
    assert smallest.peak_bytes == min(
        candidate.peak_bytes or 0
        for candidate in predicted_candidates()
        if true_rate(candidate) >= 0.55 * true_rate(best)
    )
    assert all(true_rate(candidate) * search.CLOSE_FACTOR >= true_rate(best) for candidate in close)
    assert finder.finalists(1) == [best]
