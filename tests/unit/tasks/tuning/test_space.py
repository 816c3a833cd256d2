"""The candidates of a search, which fit into memory, and which are measured."""

from collections import Counter
from itertools import pairwise

import pytest

from tasks.tuning import space
from tasks.tuning.space import Prediction
from tests.support.tuning_candidates import GIB, make_trials, predicted_candidates


def test_the_candidates_are_distinct_and_only_the_fast_recipe_recomputes_in_part():
    names = [trial.trial_id for trial in make_trials()]
    assert len(names) == len(set(names)) == 3 * 7 * (2 + 2 + 5)
    assert {trial.name.split("-")[3] for trial in make_trials(recipes=("stock",))} == {"none", "all"}
    assert max(trial.micro_batch_size for trial in make_trials(samples=5)) == 4


def test_products_in_8_bits_are_searched_where_a_setting_names_them():
    trials = make_trials(recipes=("fast", "fast-int8-backward", "fast-int8"))
    products = Counter(trial.matmul for trial in trials)
    assert products == {"bf16": 105, "int8_backward": 105, "int8": 105}
    assert {trial.recipe for trial in trials} == {"fast"}
    assert len({trial.trial_id for trial in trials}) == len(trials)
    assert {trial.matmul for trial in make_trials()} == {"bf16"}, "and nowhere else"


@pytest.mark.parametrize(
    ("samples", "profile", "positions", "longest"),
    [(584, "gpu", 32768, 640), (4001, "gpu", 32768, 4032), (4001, "gpu", 2048, 2048), (584, "tiny", 512, 80)],
)
def test_rows_are_as_long_as_the_samples_that_are_kept_whole(samples, profile, positions, longest):
    assert space.max_seq_len({"99": samples, "100": 9000}, profile, positions) == longest


def test_a_prediction_close_to_the_limit_does_not_count_as_fitting():
    assert space.fits(10 * GIB, None)
    assert not space.fits(10 * GIB, round(10.2 * GIB))
    assert space.fits(10 * GIB, round(10.4 * GIB))


def test_the_best_by_prediction_are_measured_after_the_best_of_each_recipe_and_layout():
    limit = 20 * GIB
    chosen = space.choose(predicted_candidates(), limit, 8)
    fitting = [each for each in predicted_candidates() if space.fits(each.predicted.peak_bytes, limit)]
    assert len(chosen) == 8
    assert all(space.fits(each.predicted.peak_bytes, limit) for each in chosen)
    assert chosen[0].predicted.score == max(each.predicted.score for each in fitting)
    for field in ("recipe", "layout"):
        assert {getattr(each.trial, field) for each in chosen[:5]} == {getattr(each.trial, field) for each in fitting}
    rest = [each.predicted.score for each in chosen[5:]]
    left = [each.predicted.score for each in fitting if each not in chosen]
    assert all(earlier >= later for earlier, later in pairwise([*rest, max(left)]))


def test_a_small_number_of_trials_begins_with_the_best_prediction():
    (only,) = space.choose(predicted_candidates(), None, 1)
    assert only.predicted.score == max(each.predicted.score for each in predicted_candidates())
    assert len(space.choose(predicted_candidates(), None, 1000)) == len(predicted_candidates())


def test_the_baseline_is_the_published_loop_on_the_rows_of_the_search():
    (fast,) = (trial for trial in make_trials() if trial.name == "fast-varlen-8-every-4")
    baselines = space.baselines(fast, samples=3)
    assert [trial.micro_batch_size for trial in baselines] == [2, 1]
    for trial in baselines:
        assert (trial.recipe, trial.layout, trial.gradient_checkpointing) == ("reference", "pad", True)
        assert not trial.fast_only_changes
        assert (trial.max_seq_len, trial.lora_targets) == (fast.max_seq_len, fast.lora_targets)


PREDICTED = Prediction(peak_bytes=12 * GIB, layer_bytes=GIB // 2, useful_share=1.0, score=1.0)


@pytest.mark.parametrize(
    ("predicted", "limit", "depth", "held"),
    [
        (PREDICTED, 18 * GIB, 32, 10),
        (PREDICTED, 18 * GIB, 3, 3),
        (PREDICTED, 12 * GIB, 32, None),
        (PREDICTED, None, 32, None),
        (Prediction(peak_bytes=GIB, layer_bytes=0, useful_share=1.0, score=1.0), 18 * GIB, 32, None),
    ],
)
def test_as_many_layers_are_held_as_the_limit_has_room_for(predicted, limit, depth, held):
    fast = make_trials(recipes=("fast",))[0]
    trial = space.with_held_layers(fast, predicted, limit, depth)
    assert (None if trial is None else trial.held_layers) == held
    if trial is not None:
        assert trial.trial_id == f"{fast.trial_id}-held-{held}"
